-- views/operator_actions: what operators did, to what, and why
-- caller    observers and operators
-- index     actions_pkey
-- locks     none
-- plan      order by id desc with a limit reads from the end of the index
create or replace view work.operator_actions with (security_barrier) as
select a.id, a.at, a.actor, a.action, a.target, a.reason, a.detail
  from work.actions a;
comment on column work.operator_actions.id is 'Order of the acts.';
comment on column work.operator_actions.at is 'When (database clock).';
comment on column work.operator_actions.actor is 'Who: the user of the session.';
comment on column work.operator_actions.action is 'What: cancel, retry, redrive, pause, and so on.';
comment on column work.operator_actions.target is 'On which run, queue or unit.';
comment on column work.operator_actions.reason is 'Why, in the operator''s words.';
comment on column work.operator_actions.detail is 'Counts, filters and results.';
