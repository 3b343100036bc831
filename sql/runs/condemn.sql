-- runs/condemn: fail a run whose worker died and whose five are used up by that
-- $1 run_id  uuid
-- returns   status text; no row where somebody holds it or has judged it before
-- caller    src/ledger.rs, which re-issues it in the same transaction: the dead letter
-- index     task_runs_pkey
-- locks     the run row
with u as (
  update work.task_runs r
     set status = 'failed', crashes = r.crashes + 1, token = null, lease_expires_at = null, finished_at = clock_timestamp(),
         last_error = 'WORKER_LOST: the worker died while it ran this, ' || (r.crashes + 1) || ' of its five attempts'
   where r.run_id = $1 and r.status = 'running' and r.lease_expires_at <= clock_timestamp() and r.failures + r.crashes >= 4
  returning r.run_id, r.tenant_id, r.status, r.failures, r.crashes, r.generation, r.started_at, r.worker
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
  select u.run_id, u.tenant_id, e.event, u.failures + u.crashes, u.generation, e.at, u.worker, e.detail
    from u,
         lateral (values
           (1, 'started', u.started_at, null::jsonb),
           (2, 'lost', clock_timestamp(), null),
           (3, 'failed', clock_timestamp(), pg_catalog.jsonb_build_object('code', 'WORKER_LOST'))) e (ord, event, at, detail)
   order by e.ord
)
select u.status from u
