-- schedules/note: note occurrences that are not fired; what was noted before stays as it is
-- $1 schedule        text
-- $2 decisions       text[]: missed, absent or repeated
-- $3 scheduled_for   timestamptz[]
-- $4 until           timestamptz[]
-- $5 occurrences     int4[]
-- $6 local_times     text[]
-- returns   nothing
-- caller    src/scheduler/mod.rs
-- index     schedule_decisions_pkey
-- locks     its new rows, and those that are removed, until the commit
-- tune      the 400 days after which notes are removed, at most 1000 at a time
with old as (
  delete from work.schedule_decisions d
   where d.ctid = any (array (select o.ctid
                                from work.schedule_decisions o
                               where o.schedule = $1 and o.scheduled_for < clock_timestamp() - interval '400 days'
                               order by o.scheduled_for
                               limit 1000
                                 for update skip locked))
)
insert into work.schedule_decisions (schedule, decision, scheduled_for, until, occurrences, local_time)
select $1, n.decision, n.scheduled_for, n.until, n.occurrences, n.local_time
  from unnest($2::text[], $3::timestamptz[], $4::timestamptz[], $5::int4[], $6::text[]) n (decision, scheduled_for, until, occurrences, local_time)
    on conflict on constraint schedule_decisions_pkey do nothing
