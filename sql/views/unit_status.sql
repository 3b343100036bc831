-- views/unit_status: each unit of the catalogue, and of unfinished runs: what of it is unfinished and since when; counts over all tenants
-- caller    observers and operators, dashboards
-- index     task_runs_unfinished_due_idx
-- locks     none
-- plan      as work.unit_status(): bounded, whatever waits
create or replace view work.unit_status with (security_barrier) as
select s.unit, s.service, s.kind, s.queue, s.context, s.queued, s.running, s.retrying, s.oldest_due_s, s.loaded_at, s.retired_at
  from work.unit_status() s;
comment on column work.unit_status.unit is 'Name of the task or subscriber.';
comment on column work.unit_status.service is 'Service whose catalogue holds it; null where none does, and runs of it are unfinished all the same.';
comment on column work.unit_status.kind is 'task or event.';
comment on column work.unit_status.queue is 'Queue that new runs travel on.';
comment on column work.unit_status.context is 'tenant, platform or system.';
comment on column work.unit_status.queued is 'Its runs in this state, among the 10001 unfinished ones of each queue that are due first; the next two columns too.';
comment on column work.unit_status.running is 'Runs with a worker.';
comment on column work.unit_status.retrying is 'Runs whose last attempt failed.';
comment on column work.unit_status.oldest_due_s is 'For how many seconds the first of them that does not run has been due.';
comment on column work.unit_status.loaded_at is 'When a load of its catalogue last brought it.';
comment on column work.unit_status.retired_at is 'When a load first came without it; null while it is offered.';
