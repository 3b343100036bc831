-- runs/postpone: set back the next start of a waiting run whose unit is full here, before it returns through the outbox
-- $1 run_id   uuid
-- $2 delay_s  float8
-- returns   run_id uuid; no row where it does not wait any more: then its message must stay
-- caller    src/ledger.rs, before runs/reissue
-- index     task_runs_pkey
-- locks     the run row
update work.task_runs r
   set available_at = clock_timestamp() + make_interval(secs => $2)
 where r.run_id = $1
   and r.status in ('queued', 'retrying')
returning r.run_id
