-- ops/blockers: whom a session waits for, the one with the oldest transaction first
-- $1 pid     int4
-- returns   pid int4, role text, application text, state text (null where this role may not see it), open_s float8 (the same)
-- caller    src/migrate/watch.rs
-- locks     none
select a.pid, a.usename::text as role, a.application_name as application, a.state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as open_s
  from unnest(pg_catalog.pg_blocking_pids($1)) b (pid)
  join pg_catalog.pg_stat_activity a on a.pid = b.pid
 order by a.xact_start nulls last
 limit 3
