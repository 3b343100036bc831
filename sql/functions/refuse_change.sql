-- work.refuse_change: trigger of work.run_events; the trail is append-only
-- raises    ML013 TRAIL_APPEND_ONLY
-- caller    triggers run_events_append_only, run_events_no_truncate
-- note      an event may go where the archive of the same owner holds the same one: sql/ops/archive_runs.sql moves old runs there
create or replace function work.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  -- A row that is deleted; a truncation has none.
  if tg_op = 'DELETE' and exists (
       select from pg_catalog.pg_class a
         join pg_catalog.pg_class t on t.oid = tg_relid and t.relowner = a.relowner
        where a.oid = to_regclass('work_archive.run_events') and a.relkind in ('r', 'p')) then
    if exists (
         select from work_archive.run_events a
          where a.id = old.id and a.run_id = old.run_id and a.event = old.event and a.attempt = old.attempt
            and a.generation = old.generation and a.at = old.at and a.detail is not distinct from old.detail) then
      return old;
    end if;
  end if;
  raise exception 'TRAIL_APPEND_ONLY: % of % is refused', lower(tg_op), tg_table_name
    using errcode = 'ML013',
          hint = 'The trail of a run is never changed, only added to. Old runs are moved to an archive by sql/ops/archive_runs.sql.';
end
$$;
