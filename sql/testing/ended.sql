-- testing/ended: how a run stands after an attempt
-- $1 run_id  uuid
-- returns   status text, last_error text
-- caller    src/testing/mod.rs
-- index     task_runs_pkey
-- locks     none
select r.status, r.last_error from work.task_runs r where r.run_id = $1
