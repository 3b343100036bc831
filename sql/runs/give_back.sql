-- runs/give_back: return runs whose work was stopped from outside; uses up none of their five
-- $1 run_ids      uuid[]
-- $2 tokens       uuid[], in the same order
-- $3 reason       text
-- $4 delay_s      float8, doubled with each interruption, up to 64 times
-- $5 interrupted  bool: the database session was lost; at most twenty times a generation
-- returns   run_id uuid; each that was given back
-- caller    src/ledger.rs, which re-issues them in the same transaction and only then deletes their messages
-- index     task_runs_pkey
-- locks     the run rows
with u as (
  update work.task_runs r
     set status = 'queued', token = null, lease_expires_at = null,
         interruptions = r.interruptions + $5::int4,
         available_at = clock_timestamp() + make_interval(secs => $4::float8 * (case when $5 then 1 << least(r.interruptions, 6) else 1 end)::float8)
    from unnest($1::uuid[], $2::uuid[]) m (run_id, token)
   where r.run_id = m.run_id and r.token = m.token
     and (not $5 or r.interruptions < 20)
  returning r.run_id, r.tenant_id, r.failures, r.crashes, r.generation, r.started_at, r.worker
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
  select u.run_id, u.tenant_id, e.event, u.failures + u.crashes + 1, u.generation, e.at, u.worker, e.detail
    from u,
         lateral (values
           (1, 'started', u.started_at, null::jsonb),
           (2, case when $5 then 'interrupted' else 'given_back' end, clock_timestamp(), pg_catalog.jsonb_build_object('reason', $3::text))
         ) e (ord, event, at, detail)
   order by u.run_id, e.ord
)
select u.run_id from u
