-- views/table_health: the tables of the schema: rows and dead rows by the statistics, sizes, last vacuum
-- caller    DBAs, observers and operators
-- locks     access share on each table for a moment: sizes are read from its files
-- plan      a row a table of the schema; no table is read
create or replace view work.table_health with (security_barrier) as
select s.relname::text as table_name, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows,
       round(100.0 * s.n_dead_tup / nullif(s.n_live_tup + s.n_dead_tup, 0), 1) as dead_pct,
       round(100.0 * s.n_tup_hot_upd / nullif(s.n_tup_upd, 0), 1) as hot_update_pct,
       pg_table_size(s.relid) as table_bytes, pg_indexes_size(s.relid) as index_bytes,
       greatest(s.last_vacuum, s.last_autovacuum) as last_vacuum, greatest(s.last_analyze, s.last_autoanalyze) as last_analyze
  from pg_stat_user_tables s
 where s.schemaname = 'work';
comment on column work.table_health.table_name is 'The table.';
comment on column work.table_health.live_rows is 'Rows, by the statistics: an estimate.';
comment on column work.table_health.dead_rows is 'Rows that wait for vacuum, by the statistics.';
comment on column work.table_health.dead_pct is 'Part of all rows that is dead. If it stays high, a long transaction or a slot keeps vacuum from its work.';
comment on column work.table_health.hot_update_pct is 'Part of the updates that touched no index.';
comment on column work.table_health.table_bytes is 'Size of the table with its TOAST.';
comment on column work.table_health.index_bytes is 'Size of its indexes.';
comment on column work.table_health.last_vacuum is 'When it was last vacuumed, by hand or by autovacuum.';
comment on column work.table_health.last_analyze is 'When its statistics were last made.';
