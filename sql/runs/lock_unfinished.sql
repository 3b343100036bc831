-- runs/lock_unfinished: lock runs that are to be re-issued as they are (receives used up, waits too long for SQS)
-- $1 run_ids  uuid[]
-- returns   run_id uuid; each that is unfinished
-- caller    src/ledger.rs, before runs/reissue
-- index     task_runs_pkey
-- locks     the run rows in the order of run_id
select r.run_id
  from work.task_runs r
 where r.run_id = any ($1)
   and r.status in ('queued', 'running', 'retrying')
 order by r.run_id
   for no key update
