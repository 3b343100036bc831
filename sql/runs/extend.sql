-- runs/extend: the heartbeat of the leases this process holds; waits for no row
-- $1 run_ids  uuid[]
-- $2 tokens   uuid[], in the same order
-- $3 lease_s  float8[], seconds from now
-- returns   token uuid, renewed bool, lost bool (the token differs: somebody else holds it, or nobody)
-- caller    src/ledger.rs
-- index     task_runs_pkey
-- locks     the run rows in the order of run_id, skip locked: one that is being finished is neither renewed nor lost
with held as materialized (
  select r.run_id, m.lease_s
    from work.task_runs r
    join unnest($1::uuid[], $2::uuid[], $3::float8[]) m (run_id, token, lease_s) on m.run_id = r.run_id
   where r.token = m.token
   order by r.run_id
     for no key update of r skip locked
), renewed as (
  update work.task_runs r
     set lease_expires_at = clock_timestamp() + make_interval(secs => h.lease_s)
    from held h
   where r.run_id = h.run_id
  returning r.run_id
)
select m.token, n.run_id is not null as renewed, r.token is distinct from m.token as lost
  from unnest($1::uuid[], $2::uuid[]) m (run_id, token)
  left join renewed n on n.run_id = m.run_id
  left join work.task_runs r on r.run_id = m.run_id
