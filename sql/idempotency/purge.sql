-- idempotency/purge: of the next expired keys delete those whose runs are all finished
-- $1 cursor  text: expires_at of the last key of the batch before, or null
-- $2 limit   int8: keys that are examined; all that expired at the same instant as the last one come along
-- returns   removed int8, more bool (the batch was full), reached text (the next cursor; null where nothing was found)
-- caller    src/outbox.rs, for src/units/maintenance_purge.rs, each batch a transaction of its own
-- index     idempotency_keys_expires_at_idx, task_runs_pkey
-- locks     the deleted rows, skip locked
-- plan      the arrays make it scans by ctid, whatever the planner believes of the number of rows
-- note      the key of an unfinished run does not expire: it still protects work that waits
-- note      what is examined is bounded, not what is removed: any number of expired keys may belong to runs that wait
with looked as materialized (
  select k.ctid, k.expires_at, k.run_ids
    from work.idempotency_keys k
   where k.expires_at > (select greatest('-infinity', $1::text::timestamptz))
     and k.expires_at < (select clock_timestamp())
   order by k.expires_at
   fetch first $2 rows with ties
), old as materialized (
  select k.ctid
    from work.idempotency_keys k
   where k.ctid = any (array (
           select l.ctid
             from looked l
            -- One probe a run; written as a join it would read every unfinished run for each key where statistics are behind.
            where not exists (
              select from unnest(l.run_ids) i (id)
               where (select r.status in ('queued', 'running', 'retrying') from work.task_runs r where r.run_id = i.id))))
     and k.expires_at < (select clock_timestamp())
     for update skip locked
), gone as (
  delete from work.idempotency_keys k
   where k.ctid = any (array (select old.ctid from old))
  returning 1
)
select (select count(*) from gone) as removed, (select count(*) from looked) >= $2 as more, (select max(looked.expires_at)::text from looked) as reached
