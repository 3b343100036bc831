-- work.refuse_run: says that there is no such run
-- raises    ML017 RUN_NOT_FOUND
-- caller    work.cancel, work.retry
create or replace function work.refuse_run(p_run_id uuid) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'RUN_NOT_FOUND: there is no run %', coalesce(p_run_id::text, 'null')
    using errcode = 'ML017', hint = 'Take its id from work.runs, the log or the dead letter; each database has its own runs.';
end
$$;
