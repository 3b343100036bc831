-- runs/reissue: write the outbox rows of these runs anew, in the transaction that changed or locked them
-- $1 run_ids  uuid[]
-- returns   pending int8
-- caller    src/ledger.rs; the caller has the run rows locked and a lock_timeout set
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the outbox rows in the order of run_id; waits for a relay that holds one
select work.reissue($1) as pending
