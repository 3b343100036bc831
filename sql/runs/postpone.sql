-- runs/postpone: set back the next start of waiting runs whose unit is full here, before they return through the outbox
-- $1 run_ids  uuid[], distinct
-- $2 delays   float8[], seconds from now
-- returns   run_id uuid; each that still waits: the messages of the others must stay
-- caller    src/ledger.rs, before runs/reissue
-- index     task_runs_pkey
-- locks     the run rows in the order of run_id
with waiting as materialized (
  select r.run_id, m.delay_s
    from work.task_runs r
    join unnest($1::uuid[], $2::float8[]) m (run_id, delay_s) on m.run_id = r.run_id
   where r.status in ('queued', 'retrying')
   order by r.run_id
     for no key update of r
)
update work.task_runs r
   set available_at = greatest(r.available_at, clock_timestamp() + make_interval(secs => w.delay_s))
  from waiting w
 where r.run_id = w.run_id
returning r.run_id
