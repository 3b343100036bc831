-- runs/succeed: finish the run inside its effect transaction, just before the commit
-- $1 run_id   uuid
-- $2 token    uuid
-- $3 outcome  text, JSON, null where the handler returned nothing
-- returns   succeed void, enqueued bool: whether the transaction schedules other work; or raises ML010 TRANSACTION_ENDED or ML011 LEASE_LOST
-- caller    src/ledger.rs
-- index     task_runs_pkey
-- locks     the run row until the commit
select work.succeed($1, $2, $3::text::jsonb), coalesce(current_setting('work.enqueued', true), '') = 'on' as enqueued
