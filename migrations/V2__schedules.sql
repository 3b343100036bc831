-- Occurrences of schedules that were not fired, and why. What was fired or skipped stands in the ledger: every such occurrence has a run there.

create table work.schedule_decisions (
  schedule      text        not null,
  decision      text        not null,
  scheduled_for timestamptz not null,
  until         timestamptz not null,
  occurrences   integer     not null,
  local_time    text        not null,
  decided_at    timestamptz not null default clock_timestamp(),
  constraint schedule_decisions_pkey primary key (schedule, scheduled_for, decision),
  constraint schedule_decisions_decision_check check (decision in ('missed', 'absent', 'repeated')),
  constraint schedule_decisions_occurrences_check check (occurrences > 0 and until >= scheduled_for)
);

comment on table  work.schedule_decisions is 'Occurrences of schedules that were not fired; work.schedule_history shows them with those that were. Rows older than 400 days are removed when a schedule notes the next one.';
comment on column work.schedule_decisions.schedule is 'Name of the schedule: that of its task.';
comment on column work.schedule_decisions.decision is 'missed: nobody fired it in time, and a later one was due; absent: the clock of its zone was put forward over it; repeated: the clock showed its time again.';
comment on column work.schedule_decisions.scheduled_for is 'The occurrence, of several in a row the first; for absent the moment at which the clock was put forward.';
comment on column work.schedule_decisions.until is 'The last of several in a row.';
comment on column work.schedule_decisions.occurrences is 'How many in a row; 10000 stands for that many or more.';
comment on column work.schedule_decisions.local_time is 'What the clock of the zone of the schedule showed then, or would have shown.';
comment on column work.schedule_decisions.decided_at is 'When it was noted (database clock).';

-- The anchor of a schedule that comes back was that of its first time; from now on a load sets it anew (sql/functions/load_catalogue.sql).
comment on column work.units.schedule_anchor is 'A rate counts from here, and nothing before is missed: when the schedule was first loaded in this form, or came back.';
