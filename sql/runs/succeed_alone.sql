-- runs/succeed_alone: finish a run whose handler used no effect transaction; a transaction by itself
-- $1 run_id   uuid
-- $2 token    uuid
-- $3 outcome  text, JSON, null where the handler returned nothing
-- returns   one row, or raises ML011 LEASE_LOST
-- caller    src/ledger.rs
-- index     task_runs_pkey
-- locks     the run row
with fence as materialized (
  select set_config('work.token', $2::uuid::text, true) as token
)
select work.succeed($1, f.token::uuid, $3::text::jsonb) from fence f
