-- work.run: how a run stands, for the API that enqueued it
-- returns   one row, or none where the run is another tenant's or does not exist
-- caller    API teams
-- index     task_runs_pkey
-- note      filters by the setting app.tenant_id; where that is unset no tenant's run is shown
create or replace function work.run(run_id uuid)
returns table (status text, attempt integer, failures integer, progress integer, last_error text,
               created_at timestamptz, available_at timestamptz, started_at timestamptz, finished_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.status,
         case when r.finished_at is null then r.failures + r.crashes + 1 else greatest(1, r.failures + r.crashes + (r.status = 'succeeded')::int) end,
         r.failures, r.progress, r.last_error, r.created_at, r.available_at, r.started_at, r.finished_at
    from work.task_runs r
   where r.run_id = run.run_id
     and r.tenant_id is not distinct from work.setting_tenant();
$$;
