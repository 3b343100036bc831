-- idempotency/purge: delete one batch of expired keys whose runs are all finished
-- $1 limit  int8
-- returns   nothing; the row count is what was removed
-- caller    src/units/maintenance_purge.rs, each batch a transaction of its own
-- index     idempotency_keys_expires_at_idx, task_runs_pkey
-- locks     the deleted rows, skip locked
-- plan      the array makes it a scan by ctid, whatever the planner believes of the number of rows
-- note      the key of an unfinished run does not expire: it still protects work that waits
with old as materialized (
  select k.ctid
    from work.idempotency_keys k
   where k.expires_at < (select clock_timestamp())
     and not exists (
       select from work.task_runs r
        where r.run_id = any (k.run_ids)
          and r.status in ('queued', 'running', 'retrying'))
   order by k.expires_at
   limit $1
     for update skip locked
)
delete from work.idempotency_keys k
 where k.ctid = any (array (select old.ctid from old))
