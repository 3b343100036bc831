-- runs/postpone: set back the next start of waiting runs whose unit is full here, before they return through the outbox
-- $1 run_ids  uuid[]
-- $2 delay_s  float8
-- returns   run_id uuid; each that still waits
-- caller    src/ledger.rs, before runs/reissue
-- index     task_runs_pkey
-- locks     the run rows
update work.task_runs r
   set available_at = clock_timestamp() + make_interval(secs => $2)
 where r.run_id = any ($1)
   and r.status in ('queued', 'retrying')
returning r.run_id
