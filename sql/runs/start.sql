-- runs/start: take the lease of runs that may start now, or of lapsed ones: a new token each
-- $1 run_ids      uuid[], distinct
-- $2 generations  int4[], of the messages
-- $3 tokens       uuid[], new
-- $4 leases       float8[], seconds
-- $5 alone        bool, whether nothing else runs in this process: then suspects may start
-- $6 worker       text
-- $7 flush        text, off where every message is at its first receive, else on
-- returns   a row for each run that was started; due_at is finite, whatever was written by hand
-- caller    src/ledger.rs
-- index     task_runs_pkey
-- locks     the run rows in the order of run_id, skip locked
with mode as materialized (
  select set_config('synchronous_commit', $7, true) as flush
), msg as materialized (
  select m.run_id, m.generation, m.token, m.lease_s
    from mode, unnest($1::uuid[], $2::int4[], $3::uuid[], $4::float8[]) m (run_id, generation, token, lease_s)
   where mode.flush is not null
), free as materialized (
  select r.run_id, r.status = 'running' as lapsed, r.started_at, r.worker, r.failures + r.crashes + 1 as attempt
    from work.task_runs r
    join msg m on m.run_id = r.run_id
   where r.generation <= m.generation
     and (r.status in ('queued', 'retrying') and r.available_at <= clock_timestamp()
          or r.status = 'running' and r.lease_expires_at <= clock_timestamp())
     and r.failures + r.crashes + (r.status = 'running')::int4 < 5
     and ($5 or r.crashes + (r.status = 'running')::int4 < 2)
   order by r.run_id
     for no key update of r skip locked
), started as (
  update work.task_runs r
     set status = 'running', starts = r.starts + 1, crashes = r.crashes + f.lapsed::int4, token = m.token, worker = $6,
         started_at = clock_timestamp(), progress = 0,
         lease_expires_at = clock_timestamp() + make_interval(secs => m.lease_s)
    from free f
    join msg m on m.run_id = f.run_id
   where r.run_id = f.run_id
  returning r.run_id, r.token, r.unit, r.kind, r.queue, r.tenant_id, r.generation, r.failures, r.crashes, r.payload, r.scheduled_for,
            r.event_type, r.event_version, r.traceparent, r.started_at, r.available_at, case when f.lapsed then f.worker end as lost_worker
), lost as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker)
  select s.run_id, s.tenant_id, e.event, f.attempt, s.generation, e.at, f.worker
    from started s
    join free f on f.run_id = s.run_id and f.lapsed,
         lateral (values (1, 'started', f.started_at), (2, 'lost', s.started_at)) e (ord, event, at)
   order by s.run_id, e.ord
)
select s.run_id, s.token, s.unit, s.kind, s.tenant_id, s.generation, s.failures, s.crashes, s.payload::text as payload,
       s.scheduled_for, s.event_type, s.event_version, s.traceparent, s.started_at, greatest(s.available_at, 'epoch') as due_at, s.lost_worker
  from started s
