-- work.reissue: writes the outbox rows of these runs anew: the one way back to a queue (drain, retry, redrive, repair, failure)
-- $1        run ids; those that are final otherwise than failed are left alone
-- returns   how many rows are pending now
-- note      a run whose tenant was deleted can have no row: it fails with TENANT_GONE, and has no dead letter
-- caller    src/ledger.rs and the functions of operators, in the transaction that changed the runs
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the outbox rows, after the run rows, both in the order of run_id
-- note      a row the relay holds is waited for; callers set a lock_timeout
create or replace function work.reissue(p_runs uuid[]) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_pending bigint;
  v_run     uuid;
begin
  with tenant as (
    insert into work.outbox_messages as o (tenant_id, run_id, queue, envelope, available_at)
    select r.tenant_id, r.run_id, r.queue, work.envelope(r),
           case r.status when 'running' then r.lease_expires_at when 'failed' then clock_timestamp() else greatest(r.available_at, clock_timestamp()) end
      from work.task_runs r
     where r.run_id = any (p_runs) and r.tenant_id is not null and r.status in ('queued', 'running', 'retrying', 'failed')
     order by r.run_id
    on conflict (run_id) do update
       set queue = excluded.queue, envelope = excluded.envelope, available_at = excluded.available_at,
           sent_at = null, attempts = 0
    returning 1
  ), platform as (
    insert into work.platform_outbox_messages as o (run_id, queue, envelope, available_at)
    select r.run_id, r.queue, work.envelope(r),
           case r.status when 'running' then r.lease_expires_at when 'failed' then clock_timestamp() else greatest(r.available_at, clock_timestamp()) end
      from work.task_runs r
     where r.run_id = any (p_runs) and r.tenant_id is null and r.status in ('queued', 'running', 'retrying', 'failed')
     order by r.run_id
    on conflict (run_id) do update
       set queue = excluded.queue, envelope = excluded.envelope, available_at = excluded.available_at,
           sent_at = null, attempts = 0
    returning 1
  )
  select (select count(*) from tenant) + (select count(*) from platform) into v_pending;
  return v_pending;
exception when foreign_key_violation then
  if cardinality(p_runs) > 1 then
    foreach v_run in array p_runs loop
      v_pending := coalesce(v_pending, 0) + work.reissue(array[v_run]);
    end loop;
    return v_pending;
  end if;
  with gone as (
    update work.task_runs r
       set status = 'failed', token = null, lease_expires_at = null, finished_at = clock_timestamp(),
           last_error = 'TENANT_GONE: the tenant ' || r.tenant_id || ' was deleted' || coalesce('; before that ' || r.last_error, '')
     where r.run_id = any (p_runs)
    returning r.run_id, r.tenant_id, r.failures, r.crashes, r.generation
  )
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, detail)
  select g.run_id, g.tenant_id, 'failed', greatest(1, g.failures + g.crashes), g.generation, '{"code": "TENANT_GONE"}' from gone g;
  return 0;
end
$$;
