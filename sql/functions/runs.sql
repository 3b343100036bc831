-- work.runs: runs of the tenant in app.tenant_id (where that is unset, those without one), without payload and outcome
-- $1        one run, of any age; where it is left out, those of the tenant among the 10000 newest of all
-- returns   a row a run, the newest first
-- caller    sql/views/runs.sql; operators and observers, with the id of a run
-- index     task_runs_pkey
-- plan      one probe, or the 10000 newest entries of the index: ids are in the order of their time
create or replace function work.runs(run_id uuid default null)
returns table (run_id uuid, tenant_id bigint, unit text, kind text, queue text, context text, status text, attempt integer,
               generation integer, starts integer, failures integer, crashes integer, deferrals integer, interruptions integer,
               repairs integer, worker text, lease_expires_at timestamptz, progress integer, schedule text, scheduled_for timestamptz,
               event_type text, event_version integer, traceparent text, last_error text, created_at timestamptz,
               available_at timestamptz, started_at timestamptz, finished_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.run_id, r.tenant_id, r.unit, r.kind, r.queue, r.context, r.status,
         case when r.finished_at is null then r.failures + r.crashes + 1 else greatest(1, r.failures + r.crashes + (r.status = 'succeeded')::int) end,
         r.generation, r.starts, r.failures, r.crashes, r.deferrals, r.interruptions, r.repairs, r.worker, r.lease_expires_at, r.progress,
         r.schedule, r.scheduled_for, r.event_type, r.event_version, r.traceparent, r.last_error, r.created_at, r.available_at,
         r.started_at, r.finished_at
    from (select t.* from work.task_runs t where t.run_id = $1
          union all
          (select t.* from work.task_runs t where $1 is null order by t.run_id desc limit 10000)) r
   where r.tenant_id is not distinct from work.setting_tenant()
   order by r.run_id desc;
$$;
