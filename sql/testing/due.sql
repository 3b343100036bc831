-- testing/due: the run that is due first, of units that this program has
-- $1 known    text[]
-- $2 but_not  uuid[], runs that were looked at already
-- returns   run_id uuid, generation int4, queue text
-- caller    src/testing/mod.rs
-- index     task_runs_unfinished_due_idx
-- locks     none; the start checks again under its lock
select r.run_id, r.generation, r.queue
  from unnest('{critical,default,bulk,maintenance}'::text[]) q (queue)
 cross join lateral (
   select r.run_id, r.generation, r.queue, r.available_at
     from work.task_runs r
    where r.queue = q.queue
      and r.status in ('queued', 'running', 'retrying')
      and r.available_at <= (select clock_timestamp())
      and (r.status <> 'running' or r.lease_expires_at <= clock_timestamp())
      and r.unit = any ($1)
      and r.run_id <> all ($2)
    order by r.available_at, r.run_id
    limit 1
 ) r
 order by r.available_at, r.run_id
 limit 1
