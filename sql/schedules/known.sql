-- schedules/known: the schedules that are offered, the latest occurrence of each that has a run, and what time it is
-- $1 name  text, or null: all
-- returns   name text, schedule text, timezone text, overlap text, anchor timestamptz, last timestamptz, status text, now timestamptz
-- caller    src/scheduler/mod.rs
-- index     task_runs_origin_key
-- locks     none
-- plan      one probe a schedule; the catalogue has hundreds of rows
select u.name, u.schedule, coalesce(u.schedule_timezone, 'UTC') as timezone, u.overlap, coalesce(u.schedule_anchor, u.loaded_at) as anchor,
       r.scheduled_for as last, r.status, t.now
  from (select clock_timestamp() as now) t
 cross join work.units u
  left join lateral (
    -- An occurrence that was fired ahead of its time holds up none before it.
    select o.scheduled_for, o.status
      from work.task_runs o
     where o.schedule = u.name and o.scheduled_for <= t.now
     order by o.scheduled_for desc
     limit 1) r on true
 where u.schedule is not null
   and u.retired_at is null
   and ($1::text is null or u.name = $1)
 order by u.name
