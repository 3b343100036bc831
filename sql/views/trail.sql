-- views/trail: the newest events of runs of the tenant in app.tenant_id (where that is unset, of those without one)
-- caller    observers and operators
-- index     run_events_pkey
-- locks     none
-- plan      as work.trail(): those of the tenant among the 10000 newest of all; all of one run by work.trail(its id)
create or replace view work.trail with (security_barrier) as
select s.id, s.run_id, s.tenant_id, s.event, s.attempt, s.generation, s.at, s.worker, s.detail
  from work.trail() s;
comment on column work.trail.id is 'Order of the events of a run.';
comment on column work.trail.run_id is 'The run.';
comment on column work.trail.tenant_id is 'Tenant of the run; null for platform and system work.';
comment on column work.trail.event is 'What happened, as in work.run_events.';
comment on column work.trail.attempt is 'Which of its five tries: failures + crashes + 1 at that time.';
comment on column work.trail.generation is 'Generation of the run at that time.';
comment on column work.trail.at is 'When it happened (database clock); for started the real start.';
comment on column work.trail.worker is 'The worker it happened on.';
comment on column work.trail.detail is 'Code, text, reason or delay, where there is one.';
