-- enqueue/dispatch_many: the Rust client's call of work.dispatch_many
-- $1 unit       text
-- $2 payloads   text[], JSON each
-- $3 tenant_id  int8
-- $4 delay_s    float8, seconds
-- $5 run_at     timestamptz
-- returns   run_ids uuid[] (in the order of the payloads)
-- caller    src/client.rs, in the caller's transaction
select work.dispatch_many($1, $2::text[]::jsonb[], $3, make_interval(secs => $4), $5) as run_ids
