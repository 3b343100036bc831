-- ops/renew: send an unfinished run again whose message SQS moved away; the command deletes that after this has committed
-- $1 run_id  uuid
-- returns   outcome text: renewed, over, no_run
-- caller    src/dlq.rs
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row
select work.renew($1) as outcome
