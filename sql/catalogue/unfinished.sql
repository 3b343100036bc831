-- catalogue/unfinished: unfinished runs of units, by state: what nobody would run any more if no program had these units
-- $1 units  text[]
-- returns   unit text, status text, count int8, oldest_s float8 (how long the oldest has been there)
-- caller    src/migrate.rs
-- index     task_runs_unfinished_due_idx
-- locks     none
-- plan      reads what is unfinished, in the order of the index; a command of people, never part of a path
select r.unit, r.status, count(*) as count, extract(epoch from clock_timestamp() - min(r.created_at))::float8 as oldest_s
  from work.task_runs r
 where r.queue in ('critical', 'default', 'bulk', 'maintenance')
   and r.status in ('queued', 'running', 'retrying')
   and r.unit = any ($1)
 group by r.unit, r.status
 order by r.unit, r.status
