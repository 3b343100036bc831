-- work.refuse_change: trigger of work.run_events; the trail is append-only
-- raises    ML013 TRAIL_APPEND_ONLY
-- caller    triggers run_events_append_only, run_events_no_truncate
create or replace function work.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'TRAIL_APPEND_ONLY: % of % is refused', lower(tg_op), tg_table_name
    using errcode = 'ML013',
          hint = 'The trail of a run is never changed, only added to.';
end
$$;
