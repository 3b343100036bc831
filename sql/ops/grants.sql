-- ops/grants: who may do what; applied anew by each workers migrate, in one transaction with the functions
-- note      nothing for public; a producer enqueues and reads its own runs by work.run, and no table
revoke all on schema work from public;
revoke all on all tables in schema work from public;
revoke all on all functions in schema work from public;

grant usage on schema work to monalisa_owner, monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;
grant all on all tables in schema work to monalisa_owner;
grant execute on all functions in schema work to monalisa_owner;

-- Producers: the enqueue functions.
grant execute on function
  work.dispatch(text, jsonb, bigint, interval, timestamptz, text, text),
  work.dispatch_many(text, jsonb[], bigint, interval, timestamptz),
  work.publish(text, jsonb, integer, bigint, interval, timestamptz, text, text),
  work.run(uuid),
  work.catalogue_state(jsonb)
  to monalisa_producer, monalisa_worker, monalisa_operator;
grant execute on function work.setting_tenant() to monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;
grant execute on function work.transitions() to monalisa_worker, monalisa_observer, monalisa_operator;

-- Workers: relay, runs, purge. The trail can be written and read, never changed.
grant select, insert, update, delete on work.outbox_messages, work.platform_outbox_messages to monalisa_worker;
grant select, insert, update on work.task_runs, work.queue_seen to monalisa_worker;
grant select, insert on work.run_events, work.actions to monalisa_worker;
grant select, update, delete on work.idempotency_keys to monalisa_worker;
grant select on work.units, work.catalogues, work.queue_controls, work.schema_history to monalisa_worker;
grant execute on function
  work.succeed(uuid, uuid, jsonb), work.reissue(uuid[]), work.envelope(work.task_runs), work.refuse_transition(), work.refuse_change(),
  work.reopen(uuid, integer, text, text, jsonb)
  to monalisa_worker;

-- Schedulers fire as workers or operators.
grant execute on function work.fire(text, timestamptz), work.decide_occurrence(text, timestamptz) to monalisa_worker, monalisa_operator;
grant select, insert, update, delete on work.schedule_decisions to monalisa_worker;
grant select on work.schedule_decisions to monalisa_observer, monalisa_operator;
grant select on work.schedule_history to monalisa_observer, monalisa_operator, monalisa_worker;

-- Operators act by functions alone, which keep who did what in work.actions.
grant execute on function work.cancel(uuid, text), work.retry(uuid, text) to monalisa_operator;
-- What the commands of ops call, with the worker's role too.
grant execute on function work.redrive(uuid, integer, text), work.audit(text, text, text, jsonb) to monalisa_operator, monalisa_worker;

-- Observers and operators read; payloads stay with the worker.
grant select on work.outbox_messages, work.platform_outbox_messages, work.run_events, work.units, work.catalogues,
  work.queue_seen, work.queue_controls, work.actions, work.schema_history to monalisa_observer, monalisa_operator;
grant select (run_id, tenant_id, unit, kind, queue, context, status, generation, starts, failures, crashes, deferrals, interruptions,
  repairs, lease_expires_at, worker, progress, schedule, scheduled_for, exclusive, event_type, event_version, traceparent, last_error,
  created_at, available_at, started_at, finished_at) on work.task_runs to monalisa_observer, monalisa_operator;
