-- work.unit_status: each unit of the catalogue, and of unfinished runs: what of it is unfinished and since when; counts over all tenants
-- returns   a row a unit
-- caller    sql/views/unit_status.sql
-- index     task_runs_unfinished_due_idx
-- plan      looks at the 10001 unfinished runs of each queue that are due first, however many there are
create or replace function work.unit_status()
returns table (unit text, service text, kind text, queue text, context text, queued bigint, running bigint, retrying bigint,
               oldest_due_s double precision, loaded_at timestamptz, retired_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  with unfinished as (
    select r.unit, count(*) filter (where r.status = 'queued') as queued, count(*) filter (where r.status = 'running') as running,
           count(*) filter (where r.status = 'retrying') as retrying,
           extract(epoch from clock_timestamp() - min(r.available_at) filter (where r.status <> 'running' and r.available_at <= clock_timestamp()))::float8 as oldest_due_s
      from unnest(array['critical', 'default', 'bulk', 'maintenance']) q (queue)
      cross join lateral (
        select u.unit, u.status, u.available_at
          from work.task_runs u
         where u.queue = q.queue and u.status in ('queued', 'running', 'retrying')
         order by u.available_at, u.run_id
         limit 10001) r
     group by r.unit
  )
  select coalesce(u.name, n.unit), u.service, u.kind, u.queue, u.context,
         coalesce(n.queued, 0), coalesce(n.running, 0), coalesce(n.retrying, 0), n.oldest_due_s, u.loaded_at, u.retired_at
    from work.units u
    full join unfinished n on n.unit = u.name
   order by 1;
$$;
