-- runs/fail: record a failed attempt: retrying with a backoff, or failed where it is permanent or the fifth
-- $1 run_id     uuid
-- $2 token      uuid
-- $3 code       text
-- $4 text       text, cut and cleaned by the caller
-- $5 permanent  bool
-- $6 delay_s    float8, backoff in seconds
-- returns   status text; no row where the lease is lost
-- caller    src/ledger.rs, which re-issues a failed run in the same transaction: record and dead letter cannot part
-- index     task_runs_pkey
-- locks     the run row
with u as (
  update work.task_runs r
     set status = case when $5 or r.failures + r.crashes + 1 >= 5 then 'failed' else 'retrying' end,
         failures = r.failures + 1, token = null, lease_expires_at = null,
         last_error = $3::text || ': ' || $4::text,
         available_at = case when $5 or r.failures + r.crashes + 1 >= 5 then r.available_at
                             else clock_timestamp() + make_interval(secs => $6) end,
         finished_at = case when $5 or r.failures + r.crashes + 1 >= 5 then clock_timestamp() end
   where r.run_id = $1 and r.token = $2
  returning r.run_id, r.tenant_id, r.status, r.failures, r.crashes, r.generation, r.started_at, r.worker
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
  select u.run_id, u.tenant_id, e.event, u.failures + u.crashes, u.generation, e.at, u.worker, e.detail
    from u,
         lateral (values
           (1, 'started', u.started_at, null::jsonb),
           (2, u.status, clock_timestamp(), jsonb_strip_nulls(pg_catalog.jsonb_build_object(
              'code', $3::text, 'text', $4::text, 'permanent', $5::bool,
              'delay_s', case when u.status = 'retrying' then round($6::numeric, 3) end)))) e (ord, event, at, detail)
   order by e.ord
)
select u.status from u
