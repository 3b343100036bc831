-- The schema `work`: two outbox tables, the ledger of runs and its trail, and small tables of state.
-- Forward only. Functions, triggers and grants are not here: `workers migrate` applies them from sql/ at each call.

create schema if not exists work;
comment on schema work is 'Background work: outbox, ledger of runs, catalogue of units.';

-- `tenants` belongs to the application. A minimal one is made only where none exists.
do $$
begin
  if to_regclass('public.tenants') is null then
    create table public.tenants (id bigint primary key);
  end if;
end
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Outbox of work with a tenant: one row a run, written in the caller's transaction; sent_at null means pending.
create table work.outbox_messages (
  id           bigint generated always as identity,
  tenant_id    bigint      not null references public.tenants (id),
  run_id       uuid        not null,
  queue        text        not null,
  envelope     jsonb       not null,
  available_at timestamptz not null,
  sent_at      timestamptz,
  attempts     integer     not null default 0,
  created_at   timestamptz not null default clock_timestamp(),
  constraint outbox_messages_pkey primary key (id),
  constraint outbox_messages_run_id_key unique (run_id),
  constraint outbox_messages_attempts_check check (attempts >= 0),
  constraint outbox_messages_envelope_check check (jsonb_typeof(envelope) = 'object'),
  constraint outbox_messages_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance'))
) with (
  -- Each row is updated once or twice and deleted a week later: room on the page, and vacuum early and unthrottled.
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
-- The relay's claim and its look for the next due row. The predicate is the literal the statements repeat.
create index outbox_messages_pending_idx on work.outbox_messages (queue, available_at, id) where sent_at is null;
-- The purge of rows sent long ago.
create index outbox_messages_sent_idx on work.outbox_messages (sent_at) where sent_at is not null;

comment on table  work.outbox_messages is 'Outbox of work with a tenant. The relay carries each pending row (sent_at null) to SQS.';
comment on column work.outbox_messages.id is 'Order of arrival within one due time; not an order of commits.';
comment on column work.outbox_messages.tenant_id is 'Tenant of the run; becomes the MessageGroupId on SQS.';
comment on column work.outbox_messages.run_id is 'The run that this row carries (work.task_runs.run_id).';
comment on column work.outbox_messages.queue is 'Queue to send to: critical, default, bulk or maintenance.';
comment on column work.outbox_messages.envelope is 'Body of the message. Holds no payload. With deadLetter it goes to the dead-letter queue.';
comment on column work.outbox_messages.available_at is 'Not sent before this time (database clock): delay, backoff, or the pause after a failed send.';
comment on column work.outbox_messages.sent_at is 'When SQS took it; null while pending. A re-issue sets it back to null.';
comment on column work.outbox_messages.attempts is 'Failed sends since the row was last written.';
comment on column work.outbox_messages.created_at is 'When the row was first written (database clock).';

-- ---------------------------------------------------------------------------------------------------------------------
-- Outbox of work without a tenant (platform, system, schedules), in the same form.
create table work.platform_outbox_messages (
  id           bigint generated always as identity,
  run_id       uuid        not null,
  queue        text        not null,
  envelope     jsonb       not null,
  available_at timestamptz not null,
  sent_at      timestamptz,
  attempts     integer     not null default 0,
  created_at   timestamptz not null default clock_timestamp(),
  constraint platform_outbox_messages_pkey primary key (id),
  constraint platform_outbox_messages_run_id_key unique (run_id),
  constraint platform_outbox_messages_attempts_check check (attempts >= 0),
  constraint platform_outbox_messages_envelope_check check (jsonb_typeof(envelope) = 'object'),
  constraint platform_outbox_messages_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance'))
) with (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
create index platform_outbox_messages_pending_idx on work.platform_outbox_messages (queue, available_at, id) where sent_at is null;
create index platform_outbox_messages_sent_idx on work.platform_outbox_messages (sent_at) where sent_at is not null;

comment on table  work.platform_outbox_messages is 'Outbox of work without a tenant, in the form of work.outbox_messages.';
comment on column work.platform_outbox_messages.id is 'Order of arrival within one due time; not an order of commits.';
comment on column work.platform_outbox_messages.run_id is 'The run that this row carries (work.task_runs.run_id).';
comment on column work.platform_outbox_messages.queue is 'Queue to send to: critical, default, bulk or maintenance.';
comment on column work.platform_outbox_messages.envelope is 'Body of the message. Holds no payload. With deadLetter it goes to the dead-letter queue.';
comment on column work.platform_outbox_messages.available_at is 'Not sent before this time (database clock): delay, backoff, or the pause after a failed send.';
comment on column work.platform_outbox_messages.sent_at is 'When SQS took it; null while pending. A re-issue sets it back to null.';
comment on column work.platform_outbox_messages.attempts is 'Failed sends since the row was last written.';
comment on column work.platform_outbox_messages.created_at is 'When the row was first written (database clock).';

-- ---------------------------------------------------------------------------------------------------------------------
-- The ledger: one row a run.
create table work.task_runs (
  run_id           uuid        not null,
  tenant_id        bigint,
  unit             text        not null,
  kind             text        not null,
  queue            text        not null,
  context          text        not null,
  status           text        not null default 'queued',
  generation       integer     not null default 1,
  starts           integer     not null default 0,
  failures         integer     not null default 0,
  crashes          integer     not null default 0,
  deferrals        integer     not null default 0,
  interruptions    integer     not null default 0,
  repairs          integer     not null default 0,
  token            uuid,
  lease_expires_at timestamptz,
  worker           text,
  payload          jsonb       not null,
  progress         integer     not null default 0,
  schedule         text,
  scheduled_for    timestamptz,
  exclusive        boolean     not null default false,
  event_type       text,
  event_version    integer,
  traceparent      text,
  last_error       text,
  outcome          jsonb,
  created_at       timestamptz not null default clock_timestamp(),
  available_at     timestamptz not null default clock_timestamp(),
  started_at       timestamptz,
  finished_at      timestamptz,
  constraint task_runs_pkey primary key (run_id),
  constraint task_runs_kind_check check (kind in ('task', 'event')),
  constraint task_runs_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance')),
  constraint task_runs_context_check check (context in ('tenant', 'platform', 'system')),
  constraint task_runs_tenant_check check ((context = 'tenant') = (tenant_id is not null)),
  constraint task_runs_status_check check (status in ('queued', 'running', 'retrying', 'succeeded', 'failed', 'cancelled', 'skipped')),
  constraint task_runs_lease_check check ((status = 'running') = (token is not null) and (token is null) = (lease_expires_at is null)),
  constraint task_runs_finished_check check ((status in ('succeeded', 'failed', 'cancelled', 'skipped')) = (finished_at is not null)),
  constraint task_runs_payload_check check (jsonb_typeof(payload) = 'object'),
  constraint task_runs_progress_check check (progress between 0 and 100),
  constraint task_runs_event_check check ((kind = 'event') = (event_type is not null) and (event_type is null) = (event_version is null)),
  constraint task_runs_schedule_check check ((schedule is null) = (scheduled_for is null) and (schedule is not null or not exclusive)),
  constraint task_runs_counters_check check (
    generation >= 1 and starts >= 0 and failures >= 0 and crashes >= 0 and deferrals >= 0 and interruptions >= 0 and repairs >= 0)
) with (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
-- One run a (schedule, occurrence), however many schedulers fire it.
create unique index task_runs_origin_key on work.task_runs (schedule, scheduled_for) where schedule is not null;
-- Overlap `skip`: one unfinished run a schedule, by an index, so that no race and no isolation level defeats it.
create unique index task_runs_exclusive_key on work.task_runs (schedule) where exclusive and status in ('queued', 'running', 'retrying');
-- What is unfinished, in the order of its due time: repair, views of operators. With run_id, since any number may be due at one time.
create index task_runs_unfinished_idx on work.task_runs (queue, available_at, run_id) where status in ('queued', 'running', 'retrying');

comment on table  work.task_runs is 'The ledger: one row a run, its state now. The trail of how it came there is work.run_events.';
comment on column work.task_runs.run_id is 'Identity of the run everywhere: outbox row, message, trail. A version-7 UUID.';
comment on column work.task_runs.tenant_id is 'Tenant of the run; null for platform and system work.';
comment on column work.task_runs.unit is 'Name of the task, or of the subscriber of an event (work.units.name).';
comment on column work.task_runs.kind is 'task or event.';
comment on column work.task_runs.queue is 'Queue it travels on.';
comment on column work.task_runs.context is 'tenant, platform or system.';
comment on column work.task_runs.status is 'queued, running, retrying; succeeded, failed, cancelled, skipped are final. Transitions: work.transitions().';
comment on column work.task_runs.generation is '1, raised when a finished run is reopened; older messages are stale.';
comment on column work.task_runs.starts is 'How often it was started, ever. Not a limit.';
comment on column work.task_runs.failures is 'Failed attempts of this generation. With crashes at most five.';
comment on column work.task_runs.crashes is 'Attempts of this generation whose worker died. With failures at most five.';
comment on column work.task_runs.deferrals is 'How often a worker met it that does not know its unit. At most five.';
comment on column work.task_runs.interruptions is 'Attempts given back because the database session was lost. At most twenty.';
comment on column work.task_runs.repairs is 'How often repair re-issued it in this generation.';
comment on column work.task_runs.token is 'The lease: new at each start; only its holder may change a running run.';
comment on column work.task_runs.lease_expires_at is 'When another worker may take the run over (database clock).';
comment on column work.task_runs.worker is 'The worker that started it last.';
comment on column work.task_runs.payload is 'What was enqueued, untouched. Never leaves the database by the queue.';
comment on column work.task_runs.progress is 'Percent, 0 to 100, as the handler reports it.';
comment on column work.task_runs.schedule is 'The schedule that fired it; null for anything else.';
comment on column work.task_runs.scheduled_for is 'The occurrence it was fired for.';
comment on column work.task_runs.exclusive is 'Overlap skip: no second unfinished run of this schedule.';
comment on column work.task_runs.event_type is 'Type of the event, for a subscriber''s run.';
comment on column work.task_runs.event_version is 'Version of the event, for a subscriber''s run.';
comment on column work.task_runs.traceparent is 'W3C trace context of the caller, where it gave one.';
comment on column work.task_runs.last_error is 'CODE: text of the last failure of this run.';
comment on column work.task_runs.outcome is 'What the handler returned when it succeeded.';
comment on column work.task_runs.created_at is 'When it was enqueued (database clock).';
comment on column work.task_runs.available_at is 'The next allowed start: set by dispatch, backoff and deferral.';
comment on column work.task_runs.started_at is 'When the last attempt started (database clock).';
comment on column work.task_runs.finished_at is 'When it became final; null before.';

-- ---------------------------------------------------------------------------------------------------------------------
-- The trail: append-only events of the runs.
create table work.run_events (
  id         bigint generated always as identity,
  run_id     uuid        not null,
  tenant_id  bigint,
  event      text        not null,
  attempt    integer     not null,
  generation integer     not null,
  at         timestamptz not null default clock_timestamp(),
  worker     text,
  detail     jsonb,
  constraint run_events_pkey primary key (id),
  constraint run_events_event_check check (event in (
    'started', 'succeeded', 'failed', 'retrying', 'interrupted', 'given_back', 'deferred', 'lost', 'cancelled', 'skipped',
    'repaired', 'redriven', 'retried'))
) with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
create index run_events_run_id_idx on work.run_events (run_id, id);

comment on table  work.run_events is 'The trail: what happened to each run, append-only, ordered by id.';
comment on column work.run_events.id is 'Order of the events of a run.';
comment on column work.run_events.run_id is 'The run.';
comment on column work.run_events.tenant_id is 'Tenant of the run; null for platform and system work.';
comment on column work.run_events.event is 'started, succeeded, failed, retrying, interrupted, given_back, deferred, lost, cancelled, skipped, repaired, redriven, retried.';
comment on column work.run_events.attempt is 'Which of its five tries: failures + crashes + 1 at that time.';
comment on column work.run_events.generation is 'Generation of the run at that time.';
comment on column work.run_events.at is 'When it happened (database clock); for started the real start.';
comment on column work.run_events.worker is 'The worker it happened on.';
comment on column work.run_events.detail is 'Code, text, reason or delay, where there is one.';

-- ---------------------------------------------------------------------------------------------------------------------
create table work.idempotency_keys (
  tenant_id    bigint,
  key          text        not null,
  run_ids      uuid[]      not null,
  request_hash bytea       not null,
  created_at   timestamptz not null default clock_timestamp(),
  expires_at   timestamptz not null,
  constraint idempotency_keys_key unique nulls not distinct (tenant_id, key)
);
create index idempotency_keys_expires_at_idx on work.idempotency_keys (expires_at);

comment on table  work.idempotency_keys is 'Keys given to dispatch and publish: the same key and request answer with the first runs.';
comment on column work.idempotency_keys.tenant_id is 'The key counts within this tenant; null for platform work.';
comment on column work.idempotency_keys.key is 'What the caller gave, 1 to 200 characters.';
comment on column work.idempotency_keys.run_ids is 'The runs of the first call; empty where an event had no subscriber.';
comment on column work.idempotency_keys.request_hash is 'SHA-256 over unit or event and payload.';
comment on column work.idempotency_keys.created_at is 'When it was first used.';
comment on column work.idempotency_keys.expires_at is 'From then on it may be taken over or purged, once its runs are finished.';

-- ---------------------------------------------------------------------------------------------------------------------
create table work.catalogues (
  service   text        not null,
  hash      text        not null,
  loaded_at timestamptz not null default clock_timestamp(),
  constraint catalogues_pkey primary key (service)
);
comment on table  work.catalogues is 'Which catalogue each service loaded last.';
comment on column work.catalogues.service is 'Name of the service that owns the units.';
comment on column work.catalogues.hash is 'SHA-256 of the catalogue as loaded, hexadecimal.';
comment on column work.catalogues.loaded_at is 'When it was loaded.';

create table work.units (
  name              text        not null,
  service           text        not null references work.catalogues (service),
  kind              text        not null,
  queue             text        not null,
  context           text        not null,
  overlap           text        not null default 'skip',
  timeout_seconds   integer     not null,
  event_type        text,
  event_version     integer,
  schedule          text,
  schedule_timezone text,
  schedule_anchor   timestamptz,
  loaded_at         timestamptz not null default clock_timestamp(),
  retired_at        timestamptz,
  constraint units_pkey primary key (name),
  constraint units_name_check check (name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$' and length(name) <= 64),
  constraint units_kind_check check (kind in ('task', 'event')),
  constraint units_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance')),
  constraint units_context_check check (context in ('tenant', 'platform', 'system')),
  constraint units_overlap_check check (overlap in ('skip', 'allow')),
  constraint units_timeout_check check (timeout_seconds between 1 and 39600),
  constraint units_event_check check ((kind = 'event') = (event_type is not null) and (event_type is null) = (event_version is null)),
  constraint units_schedule_check check (schedule is null or (kind = 'task' and context <> 'tenant'))
);
create index units_event_idx on work.units (event_type, event_version) where event_type is not null;

comment on table  work.units is 'The catalogue as loaded: what can be dispatched and who subscribes to which event.';
comment on column work.units.name is 'Name of the task or subscriber.';
comment on column work.units.service is 'Service whose catalogue holds it; only that service''s load changes or retires it.';
comment on column work.units.kind is 'task or event.';
comment on column work.units.queue is 'Queue its runs travel on.';
comment on column work.units.context is 'tenant: a run needs a tenant; platform, system: it may not have one.';
comment on column work.units.overlap is 'For scheduled tasks: skip or allow a run beside an unfinished one.';
comment on column work.units.timeout_seconds is 'How long one attempt may take.';
comment on column work.units.event_type is 'For a subscriber: type of the event.';
comment on column work.units.event_version is 'For a subscriber: version of the event.';
comment on column work.units.schedule is 'rate(...) or cron(...), where the task has a schedule.';
comment on column work.units.schedule_timezone is 'Time zone of the schedule.';
comment on column work.units.schedule_anchor is 'A rate counts from here: when the schedule was first loaded.';
comment on column work.units.loaded_at is 'When a load last brought it.';
comment on column work.units.retired_at is 'When a load first came without it; null while it is offered.';

-- ---------------------------------------------------------------------------------------------------------------------
create table work.queue_seen (
  queue      text        not null,
  seen_until timestamptz not null default '-infinity',
  constraint queue_seen_pkey primary key (queue),
  constraint queue_seen_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance'))
) with (fillfactor = 20);
insert into work.queue_seen (queue) values ('critical'), ('default'), ('bulk'), ('maintenance');
comment on table  work.queue_seen is 'How far each queue has demonstrably been served; repair judges by it.';
comment on column work.queue_seen.queue is 'The queue.';
comment on column work.queue_seen.seen_until is 'Everything due before this was offered to a worker (database clock).';

create table work.queue_controls (
  queue  text        not null,
  paused boolean     not null default false,
  reason text,
  by     text,
  since  timestamptz,
  constraint queue_controls_pkey primary key (queue),
  constraint queue_controls_queue_check check (queue in ('critical', 'default', 'bulk', 'maintenance'))
) with (fillfactor = 20);
insert into work.queue_controls (queue) values ('critical'), ('default'), ('bulk'), ('maintenance');
comment on table  work.queue_controls is 'Operators'' switches of each queue.';
comment on column work.queue_controls.queue is 'The queue.';
comment on column work.queue_controls.paused is 'Whether workers leave it alone.';
comment on column work.queue_controls.reason is 'Why, in the operator''s words.';
comment on column work.queue_controls.by is 'Who switched it last.';
comment on column work.queue_controls.since is 'When it was switched last.';

create table work.actions (
  id     bigint generated always as identity,
  at     timestamptz not null default clock_timestamp(),
  actor  text        not null,
  action text        not null,
  target text,
  reason text,
  detail jsonb,
  constraint actions_pkey primary key (id)
);
comment on table  work.actions is 'Audit of what operators did.';
comment on column work.actions.id is 'Order of the acts.';
comment on column work.actions.at is 'When (database clock).';
comment on column work.actions.actor is 'Who.';
comment on column work.actions.action is 'What: cancel, retry, redrive, pause, …';
comment on column work.actions.target is 'On which run, queue or unit.';
comment on column work.actions.reason is 'Why, in the operator''s words.';
comment on column work.actions.detail is 'Counts, filters and results.';
