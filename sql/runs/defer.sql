-- runs/defer: a worker that does not know the unit sets the run back: 15 s, 1, 4, 15, 60 min; the sixth time it fails
-- $1 run_id  uuid
-- $2 worker  text
-- returns   status text, delay_s float8, unit text; no row where it is to be judged again
-- caller    src/ledger.rs, which re-issues a failed run in the same transaction
-- index     task_runs_pkey
-- locks     the run row
-- note      a copy of a message that was deferred just now defers it no further
-- note      a lapsed lease met here is the crash of another worker and is counted as one, unless it is the fifth: runs/condemn
with r as materialized (
  select r.run_id, r.status = 'running' as lapsed, r.started_at, r.worker, r.failures + r.crashes + 1 as attempt,
         (array[15, 60, 240, 900, 3600])[r.deferrals + 1] as delay_s
    from work.task_runs r
   where r.run_id = $1
     and (r.status in ('queued', 'retrying') and r.available_at <= clock_timestamp()
          or r.status = 'running' and r.lease_expires_at <= clock_timestamp())
     and r.failures + r.crashes + (r.status = 'running')::int4 < 5
     for no key update of r
), u as (
  update work.task_runs t
     set status = case when r.delay_s is null then 'failed' when r.lapsed then 'queued' else t.status end,
         deferrals = t.deferrals + (r.delay_s is not null)::int4,
         crashes = t.crashes + r.lapsed::int4, token = null, lease_expires_at = null,
         available_at = clock_timestamp() + make_interval(secs => coalesce(r.delay_s, 0)),
         last_error = case when r.delay_s is null
                           then 'UNIT_NOT_REGISTERED: no worker that met this run knows the unit ' || t.unit else t.last_error end,
         finished_at = case when r.delay_s is null then clock_timestamp() end
    from r
   where t.run_id = r.run_id
  returning t.run_id, t.tenant_id, t.unit, t.status, t.generation, t.deferrals, t.failures, t.crashes
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
  select u.run_id, u.tenant_id, e.event, e.attempt, u.generation, e.at, e.worker, e.detail
    from u, r,
         lateral (values
           (1, r.lapsed, 'started', r.attempt, r.started_at, r.worker, null::jsonb),
           (2, r.lapsed, 'lost', r.attempt, clock_timestamp(), r.worker, null),
           (3, true, case u.status when 'failed' then 'failed' else 'deferred' end, u.failures + u.crashes + 1, clock_timestamp(), $2::text,
            jsonb_strip_nulls(pg_catalog.jsonb_build_object('code', 'UNIT_NOT_REGISTERED', 'delay_s', r.delay_s)))
         ) e (ord, wanted, event, attempt, at, worker, detail)
   where e.wanted
   order by e.ord
)
select u.status, r.delay_s::float8 as delay_s, u.unit from u, r
