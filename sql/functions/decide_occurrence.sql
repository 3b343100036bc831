-- work.decide_occurrence: fires an occurrence of a schedule, or skips it where overlap is skip and an earlier run of it is unfinished
-- returns   decision (fired, skipped, exists), run_id of the run made for it, suppressed_by: the unfinished run
-- raises    ML001 UNIT_NOT_IN_CATALOG, ML002 CATALOG_NOT_LOADED, ML003 UNIT_RETIRED, ML030 SCHEDULE_UNKNOWN, ML031 SCHEDULE_TIME_INVALID;
--           40001 where the unfinished run is not in the snapshot of REPEATABLE READ or SERIALIZABLE: try again
-- caller    work.fire, sql/schedules/decide.sql
-- index     units_pkey, task_runs_origin_key, task_runs_exclusive_key, platform_outbox_messages_run_id_key
-- locks     its new rows; waits for a transaction that has just fired the schedule. Fire one schedule a transaction: two in other order deadlock
-- note      both rules are unique indexes, so neither a race nor an isolation level defeats them; the setting app.tenant_id plays no part
create or replace function work.decide_occurrence(schedule text, scheduled_for timestamptz)
returns table (decision text, run_id uuid, suppressed_by uuid)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_unit   work.units;
  v_run_id uuid := work.uuid_v7();
  v_holder uuid;
  v_key    text;
begin
  select u.* into v_unit from work.units u where u.name = decide_occurrence.schedule and u.kind = 'task';
  if not found then
    perform work.refuse_unit(decide_occurrence.schedule);
  end if;
  if v_unit.schedule is null then
    raise exception 'SCHEDULE_UNKNOWN: the task % has no schedule', v_unit.name
      using errcode = 'ML030', hint = 'Declare one beside its handler and load the catalogue, or dispatch it: work.dispatch.';
  end if;
  perform work.check_retired(v_unit.name, v_unit.retired_at);
  if decide_occurrence.scheduled_for is null or not isfinite(decide_occurrence.scheduled_for) then
    raise exception 'SCHEDULE_TIME_INVALID: the occurrence of % is %', v_unit.name, coalesce(decide_occurrence.scheduled_for::text, 'null')
      using errcode = 'ML031', hint = 'Pass the time it was scheduled for, such as 2026-01-02T03:00:00Z. It is never replaced by the present.';
  end if;
  if decide_occurrence.scheduled_for > clock_timestamp() + interval '1 day' then
    raise exception 'SCHEDULE_TIME_INVALID: the occurrence % of % is more than a day ahead', decide_occurrence.scheduled_for, v_unit.name
      using errcode = 'ML031', hint = 'Fire an occurrence when it is due. For work at a later time use work.dispatch with run_at.';
  end if;

  if exists (select from work.task_runs r where r.schedule = v_unit.name and r.scheduled_for = decide_occurrence.scheduled_for) then
    return query select 'exists', null::uuid, null::uuid;
    return;
  end if;
  for v_try in 1 .. 5 loop
    begin
      insert into work.task_runs (run_id, unit, kind, queue, context, payload, schedule, scheduled_for, exclusive)
      values (v_run_id, v_unit.name, 'task', v_unit.queue, v_unit.context, '{}', v_unit.name, decide_occurrence.scheduled_for, v_unit.overlap = 'skip');
      perform work.reissue(array[v_run_id]);
      return query select 'fired', v_run_id, null::uuid;
      return;
    exception when unique_violation then
      get stacked diagnostics v_key = constraint_name;
    end;
    exit when v_key = 'task_runs_origin_key';
    select r.run_id into v_holder
      from work.task_runs r
     where r.schedule = v_unit.name and r.exclusive and r.status in ('queued', 'running', 'retrying');
    if found then
      begin
        insert into work.task_runs (run_id, unit, kind, queue, context, payload, schedule, scheduled_for, exclusive, status, finished_at)
        values (v_run_id, v_unit.name, 'task', v_unit.queue, v_unit.context, '{}', v_unit.name, decide_occurrence.scheduled_for, true,
                'skipped', clock_timestamp());
        insert into work.run_events (run_id, event, attempt, generation, detail)
        values (v_run_id, 'skipped', 1, 1, jsonb_build_object('reason', 'an earlier run of the schedule is unfinished', 'suppressed_by', v_holder));
        return query select 'skipped', v_run_id, v_holder;
        return;
      exception when unique_violation then
        v_key := 'task_runs_origin_key';
      end;
      exit;
    end if;
    -- It has finished meanwhile; or it began behind this transaction's snapshot, which does not change.
    exit when current_setting('transaction_isolation') not in ('read committed', 'read uncommitted');
  end loop;
  if v_key = 'task_runs_origin_key' then
    return query select 'exists', null::uuid, null::uuid;
    return;
  end if;
  raise serialization_failure using
    message = format('another transaction fires %s at this moment', v_unit.name), hint = 'Try the transaction again.';
end
$$;
