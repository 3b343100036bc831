-- runs/reopen: a redriven dead letter came back: a new generation of its failed run, its message pending in the outbox
-- $1 run_id  uuid
-- $2 mark    int4, deadLetter.generation of the message
-- $3 worker  text
-- returns   generation int4; null where it was reopened before
-- caller    src/ledger.rs
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row
select work.reopen($1, $2, 'redriven', $3, pg_catalog.jsonb_build_object('reason', 'the dead letter came back to the queue')) as generation
