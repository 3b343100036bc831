-- testing/forward: as if so much time had passed for whatever waits: it is due that much sooner
-- $1 seconds  float8
-- returns   runs int8
-- caller    src/testing/mod.rs
-- index     task_runs_unfinished_due_idx, task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run rows in the order of queue and due time, then their outbox rows
-- note      for databases of tests; at most ten thousand runs
with waiting as materialized (
  select r.run_id
    from work.task_runs r
   where r.queue in ('critical', 'default', 'bulk', 'maintenance')
     and r.status in ('queued', 'running', 'retrying')
     and r.status <> 'running'
   order by r.queue, r.available_at, r.run_id
   limit 10000
     for no key update of r
), run as (
  update work.task_runs r set available_at = r.available_at - make_interval(secs => $1)
   where r.run_id = any (array(select run_id from waiting)) and r.status in ('queued', 'retrying')
  returning r.run_id
), tenant as (
  update work.outbox_messages o set available_at = o.available_at - make_interval(secs => $1)
   where o.run_id = any (array(select run_id from run order by run_id)) and o.sent_at is null
), platform as (
  update work.platform_outbox_messages o set available_at = o.available_at - make_interval(secs => $1)
   where o.run_id = any (array(select run_id from run order by run_id)) and o.sent_at is null
)
select count(*) as runs from run
