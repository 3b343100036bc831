-- ops/grants: who may do what; applied anew by each workers migrate, in one transaction with the functions
-- note      nothing for public; a producer enqueues and reads its own runs by work.run, and no table
-- note      the five roles get what stands here and nothing else; what you grant to roles of your own stays
revoke all on schema work from public;
revoke all on all tables in schema work from public, monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;
revoke all on all sequences in schema work from public, monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;
revoke all on all functions in schema work from public, monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;

grant usage on schema work to monalisa_owner, monalisa_worker, monalisa_producer, monalisa_observer, monalisa_operator;
grant create on schema work to monalisa_owner;
grant all on all tables in schema work to monalisa_owner;
grant all on all sequences in schema work to monalisa_owner;
grant execute on all functions in schema work to monalisa_owner;

-- Producers: the enqueue functions. By work.catalogue_state an API sees at its boot whether the catalogue is the one it knows.
grant execute on function
  work.dispatch(text, jsonb, bigint, interval, timestamptz, text, text),
  work.dispatch_many(text, jsonb[], bigint, interval, timestamptz),
  work.publish(text, jsonb, integer, bigint, interval, timestamptz, text, text),
  work.run(uuid),
  work.catalogue_state(jsonb)
  to monalisa_producer, monalisa_worker, monalisa_operator;
grant execute on function work.transitions() to monalisa_worker, monalisa_observer, monalisa_operator;

-- Workers: relay, runs, purge. The trail can be written and read, never changed. The policies ask for the tenant.
grant select, insert, update, delete on work.outbox_messages, work.platform_outbox_messages to monalisa_worker;
grant select, insert, update on work.task_runs, work.queue_seen to monalisa_worker;
grant select, insert on work.run_events, work.actions to monalisa_worker;
grant select, update, delete on work.idempotency_keys to monalisa_worker;
grant select on work.units, work.catalogues, work.queue_controls, work.schema_history to monalisa_worker;
grant execute on function
  work.succeed(uuid, uuid, jsonb), work.reissue(uuid[]), work.envelope(work.task_runs), work.refuse_transition(), work.refuse_change(),
  work.reopen(uuid, integer, text, text, jsonb), work.setting_tenant()
  to monalisa_worker;

-- Schedulers fire as workers or operators.
grant execute on function work.fire(text, timestamptz), work.decide_occurrence(text, timestamptz) to monalisa_worker, monalisa_operator;
grant select, insert, update, delete on work.schedule_decisions to monalisa_worker;
grant select on work.schedule_history to monalisa_observer, monalisa_operator, monalisa_worker;

-- Operators act by functions alone, which keep who did what in work.actions.
grant execute on function work.cancel(uuid, text), work.retry(uuid, text) to monalisa_operator;
-- What the commands of ops call, with the worker's role too.
grant execute on function work.redrive(uuid, integer, text), work.renew(uuid), work.audit(text, text, text, jsonb) to monalisa_operator, monalisa_worker;

-- Observers and operators read views, and no table: counts over all tenants, and rows of one tenant at a time. Payloads stay with the worker.
-- Who reads a view calls the function behind it.
grant select on work.queue_status, work.outbox_status, work.unit_status, work.failures, work.runs, work.trail, work.operator_actions,
  work.table_health to monalisa_observer, monalisa_operator;
grant execute on function work.queue_status(), work.outbox_status(), work.unit_status(), work.failures(), work.runs(uuid), work.trail(uuid)
  to monalisa_observer, monalisa_operator;
