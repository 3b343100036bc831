-- views/schedule_history: the newest decisions about the occurrences of each schedule: fired, skipped and by which run, missed, absent, repeated
-- returns   a row an occurrence; missed ones in a row are one
-- caller    people: where schedule = '…' order by scheduled_for desc limit 20
-- index     units_pkey, task_runs_origin_key, schedule_decisions_pkey, run_events_run_id_idx
-- plan      of each schedule the 1000 newest runs and the 1000 newest other decisions; older ones stand in the tables
-- locks     none
-- note      with the rights of the owner: runs of schedules have no tenant, and payloads are not shown
create or replace view work.schedule_history with (security_barrier) as
select r.schedule, r.scheduled_for, case when r.status = 'skipped' then 'skipped' else 'fired' end as decision,
       r.scheduled_for as until, 1 as occurrences, r.run_id, r.status,
       case when r.status = 'skipped' then (
         select (e.detail ->> 'suppressed_by')::uuid from work.run_events e where e.run_id = r.run_id and e.event = 'skipped' order by e.id limit 1)
       end as suppressed_by,
       null::text as local_time, r.created_at as decided_at
  from work.units u,
       lateral (select t.schedule, t.scheduled_for, t.status, t.run_id, t.created_at
                  from work.task_runs t
                 where t.schedule = u.name
                 order by t.scheduled_for desc
                 limit 1000) r
union all
select d.schedule, d.scheduled_for, d.decision, d.until, d.occurrences, null, null, null, d.local_time, d.decided_at
  from work.units u,
       lateral (select h.*
                  from work.schedule_decisions h
                 where h.schedule = u.name
                 order by h.scheduled_for desc
                 limit 1000) d;
comment on view   work.schedule_history is 'What became of the newest occurrences of each schedule.';
comment on column work.schedule_history.schedule is 'Name of the schedule: that of its task.';
comment on column work.schedule_history.scheduled_for is 'The occurrence; of several in a row the first.';
comment on column work.schedule_history.decision is 'fired; skipped: an earlier run was unfinished; missed: a later one was due; absent, repeated: the clock of its zone was put forward over it, or back.';
comment on column work.schedule_history.until is 'The last of several in a row.';
comment on column work.schedule_history.occurrences is 'How many in a row.';
comment on column work.schedule_history.run_id is 'The run that was made for it.';
comment on column work.schedule_history.status is 'The state of that run now.';
comment on column work.schedule_history.suppressed_by is 'For skipped: the unfinished run.';
comment on column work.schedule_history.local_time is 'For those without a run: what the clock of the zone showed, or would have.';
comment on column work.schedule_history.decided_at is 'When it was decided (database clock).';
