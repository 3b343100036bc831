-- work.cancel: stops an unfinished run at once, for an operator; what its handler wrote is never committed
-- returns   the resulting status: cancelled, or that of a run which was finished before
-- raises    ML017 RUN_NOT_FOUND, ML018 REASON_MISSING
-- caller    operators, by hand or by a command
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row until the commit: a finish under way is waited for and wins; its outbox row, skip locked: no relay is waited for
-- note      a message that is on its way is judged as over and deleted; the heartbeat of a running attempt tells its handler
create or replace function work.cancel(run_id uuid, reason text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  r work.task_runs;
begin
  perform work.check_reason(cancel.reason);
  -- As it was: the row lock shows the newest version, also where a finish was waited for.
  select t.* into r from work.task_runs t where t.run_id = cancel.run_id for no key update;
  if not found then
    perform work.refuse_run(cancel.run_id);
  end if;
  if r.status in ('queued', 'running', 'retrying') then
    update work.task_runs t
       set status = 'cancelled', token = null, lease_expires_at = null, finished_at = clock_timestamp()
     where t.run_id = r.run_id;
    insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
    select r.run_id, r.tenant_id, e.event, r.failures + r.crashes + 1, r.generation, e.at, e.worker, e.detail
      from (values
        (1, r.status = 'running', 'started', r.started_at, r.worker, null::jsonb),
        (2, true, 'cancelled', clock_timestamp(), null, jsonb_build_object('reason', cancel.reason, 'by', session_user, 'was', r.status))
      ) e (ord, wanted, event, at, worker, detail)
     where e.wanted
     order by e.ord;
    delete from work.outbox_messages o
     where o.id = (select p.id from work.outbox_messages p where p.run_id = r.run_id and p.sent_at is null for update skip locked);
    delete from work.platform_outbox_messages o
     where o.id = (select p.id from work.platform_outbox_messages p where p.run_id = r.run_id and p.sent_at is null for update skip locked);
  end if;
  insert into work.actions (actor, action, target, reason, detail)
  values (session_user, 'cancel', r.run_id, cancel.reason, jsonb_build_object('was', r.status));
  return case when r.status in ('queued', 'running', 'retrying') then 'cancelled' else r.status end;
end
$$;
