-- ops/redrive: take back one dead letter; the command deletes it from its queue after this has committed
-- $1 run_id      uuid
-- $2 generation  int4, the letter was made for
-- $3 reason      text
-- returns   outcome text: reopened, renewed, over, no_run
-- caller    src/dlq.rs
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row
select work.redrive($1, $2, $3) as outcome
