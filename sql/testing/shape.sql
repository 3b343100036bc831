-- testing/shape: give a run that has not started yet the attempt and the occurrence that a test asks for
-- $1 run_id         uuid
-- $2 failures       int4, before this attempt
-- $3 schedule       text, null for none
-- $4 scheduled_for  timestamptz, null for none
-- returns   nothing
-- caller    src/testing/trial.rs, in a transaction that is rolled back
-- index     task_runs_pkey
-- locks     the run row
update work.task_runs r
   set failures = $2, schedule = $3, scheduled_for = $4
 where r.run_id = $1
