-- runs/reopen: a redriven dead letter came back: a new generation of its failed run
-- $1 run_id  uuid
-- $2 mark    int4, deadLetter.generation of the message
-- $3 worker  text
-- returns   generation int4; no row where it was reopened before
-- caller    src/ledger.rs, which re-issues it in the same transaction
-- index     task_runs_pkey
-- locks     the run row
with u as (
  update work.task_runs r
     set status = 'queued', generation = r.generation + 1, failures = 0, crashes = 0, deferrals = 0, interruptions = 0, repairs = 0,
         exclusive = false, progress = 0, available_at = clock_timestamp(), finished_at = null
   where r.run_id = $1 and r.status = 'failed' and r.generation <= $2
  returning r.run_id, r.tenant_id, r.generation
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, worker, detail)
  select u.run_id, u.tenant_id, 'redriven', 1, u.generation, $3::text, jsonb_build_object('reason', 'the dead letter came back to the queue')
    from u
)
select u.generation from u
