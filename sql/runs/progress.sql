-- runs/progress: what the handler reports, visible at once
-- $1 run_id   uuid
-- $2 token    uuid
-- $3 percent  int4, 0 to 100
-- returns   nothing; no row is changed where the lease is lost
-- caller    src/ledger.rs, on the record connection, at most once a second
-- index     task_runs_pkey
-- locks     the run row, for this statement
update work.task_runs r
   set progress = $3
 where r.run_id = $1 and r.token = $2
