-- work.trail: what happened to runs of the tenant in app.tenant_id (where that is unset, to those without one)
-- $1        one run, of any age; where it is left out, events of the tenant among the 10000 newest of all
-- returns   a row an event, in the order in which they happened
-- caller    sql/views/trail.sql; operators and observers, with the id of a run
-- index     run_events_run_id_idx, run_events_pkey
-- plan      the events of one run, or the 10000 newest entries of the index
create or replace function work.trail(run_id uuid default null)
returns table (id bigint, run_id uuid, tenant_id bigint, event text, attempt integer, generation integer, at timestamptz, worker text, detail jsonb)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.id, e.run_id, e.tenant_id, e.event, e.attempt, e.generation, e.at, e.worker, e.detail
    from (select t.* from work.run_events t where t.run_id = $1
          union all
          (select t.* from work.run_events t where $1 is null order by t.id desc limit 10000)) e
   where e.tenant_id is not distinct from work.setting_tenant()
   order by e.id;
$$;
