-- work.envelope: the JSON that travels for a run, as the ledger has it now; never the payload
-- returns   jsonb; for a failed run with deadLetter, which sends it to the dead-letter queue
-- caller    work.enqueue, work.reissue
create or replace function work.envelope(r work.task_runs) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object(
           'v', 1,
           'runId', r.run_id,
           'generation', r.generation,
           'unit', r.unit,
           'kind', r.kind,
           'queue', r.queue,
           'context', r.context,
           'tenantId', r.tenant_id,
           'scheduledFor', r.scheduled_for,
           'event', case when r.kind = 'event' then jsonb_build_object('type', r.event_type, 'version', r.event_version) end,
           'enqueuedAt', r.created_at,
           'traceparent', r.traceparent)
      || case when r.status = 'failed' then jsonb_build_object(
           'deadLetter', jsonb_build_object(
             'generation', r.generation,
             'code', substring(r.last_error from '^[A-Z][A-Z0-9_]*'),
             'text', coalesce(substring(r.last_error from '^[A-Z][A-Z0-9_]*: (.*)$'), r.last_error),
             'attempt', greatest(1, r.failures + r.crashes),
             'worker', r.worker,
             'at', r.finished_at))
         else '{}' end;
$$;
