-- guards/index_comments: which statement needs which index of the first schema; those of sql/indexes/ get the first line of their file
-- caller    workers migrate
-- locks     each index in share update exclusive mode until the commit; reading and writing go on
do $$
declare
  v_index   text;
  v_comment text;
begin
  for v_index, v_comment in
    values
      ('outbox_messages_pkey', 'The marks of the relay, and the purge, which deletes by id.'),
      ('outbox_messages_run_id_key', 'One row a run: a re-issue writes it anew. Also who looks up the row of a run.'),
      ('outbox_messages_pending_idx', 'The claim of the relay, its look for the next due row, and counts of what waits.'),
      ('outbox_messages_sent_idx', 'The purge of rows sent long ago.'),
      ('platform_outbox_messages_pkey', 'As outbox_messages_pkey.'),
      ('platform_outbox_messages_run_id_key', 'As outbox_messages_run_id_key.'),
      ('platform_outbox_messages_pending_idx', 'As outbox_messages_pending_idx.'),
      ('platform_outbox_messages_sent_idx', 'As outbox_messages_sent_idx.'),
      ('task_runs_pkey', 'Every look at a run and every change of one; in its order also the newest runs.'),
      ('task_runs_origin_key', 'One run a schedule and occurrence, however many schedulers fire it.'),
      ('task_runs_exclusive_key', 'Overlap skip: one unfinished run a schedule, whatever races.'),
      ('run_events_pkey', 'The newest events.'),
      ('run_events_run_id_idx', 'The trail of one run.'),
      ('idempotency_keys_key', 'A key is taken once within its tenant.'),
      ('idempotency_keys_expires_at_idx', 'The purge of expired keys.'),
      ('catalogues_pkey', 'One catalogue a service.'),
      ('units_pkey', 'Every dispatch looks its unit up.'),
      ('units_event_idx', 'Every publish looks its subscribers up.'),
      ('queue_seen_pkey', 'One row a queue.'),
      ('queue_controls_pkey', 'One row a queue.'),
      ('actions_pkey', 'The newest acts.'),
      ('schedule_decisions_pkey', 'The decisions of a schedule, by time.'),
      ('schema_history_pkey', 'One row a migration.')
  loop
    if to_regclass('work.' || v_index) is not null then
      execute format('comment on index work.%I is %L', v_index, v_comment);
    end if;
  end loop;
end
$$;
