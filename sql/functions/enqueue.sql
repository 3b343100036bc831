-- work.enqueue: writes the run row and the outbox row of each run, in one statement
-- $1 units, $2 the run ids and $3 the payloads in the same order, $4 tenant, $5 due at, $6 traceparent
-- raises    23503 where the tenant does not exist
-- caller    work.dispatch, work.dispatch_many, work.publish, after their checks
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     key share on the tenant's row until the caller's commit
-- note      in plpgsql its plan is kept for the session; as an SQL function it was planned anew at each call, at twice the cost
create or replace function work.enqueue(
  p_units       work.units[],
  p_run_ids     uuid[],
  p_payloads    jsonb[],
  p_tenant_id   bigint,
  p_due_at      timestamptz,
  p_traceparent text
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  with run as (
    insert into work.task_runs
      (run_id, tenant_id, unit, kind, queue, context, payload, event_type, event_version, traceparent, available_at)
    select n.new_id, p_tenant_id, n.name, n.kind, n.queue, n.context, n.new_payload, n.event_type, n.event_version,
           p_traceparent, p_due_at
      -- The columns of units keep their names.
      from rows from (unnest(p_run_ids), unnest(p_payloads), unnest(p_units)) with ordinality as n (new_id, new_payload)
     order by n.ordinality
    returning *
  ), tenant as (
    insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at)
    select tenant_id, run_id, queue, work.envelope(run), available_at from run where tenant_id is not null
  )
  insert into work.platform_outbox_messages (run_id, queue, envelope, available_at)
  select run_id, queue, work.envelope(run), available_at from run where tenant_id is null;
  -- A worker wakes the relay after it has committed an effect with this.
  perform set_config('work.enqueued', 'on', true);
end
$$;
