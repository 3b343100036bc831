-- work.queue_status: each queue: what waits and since when, what runs, and how far it was served; counts over all tenants
-- returns   a row a queue
-- caller    sql/views/queue_status.sql
-- index     task_runs_unfinished_due_idx
-- plan      counts end at 10001: at most some twenty thousand index entries a queue, however many runs there are
create or replace function work.queue_status()
returns table (queue text, waiting bigint, oldest_waiting_s double precision, delayed bigint, running bigint, lapsed bigint,
               seen_until timestamptz, paused boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select q.queue, due.waiting, due.oldest_waiting_s, later.delayed, due.running, due.lapsed,
         nullif(q.seen_until, '-infinity'), coalesce(c.paused, false)
    from work.queue_seen q
    left join work.queue_controls c on c.queue = q.queue
    cross join lateral (
      select count(*) filter (where r.status <> 'running') as waiting,
             extract(epoch from clock_timestamp() - min(r.available_at) filter (where r.status <> 'running'))::float8 as oldest_waiting_s,
             count(*) filter (where r.status = 'running') as running,
             count(*) filter (where r.status = 'running' and r.lease_expires_at < clock_timestamp()) as lapsed
        from (select u.status, u.available_at, u.lease_expires_at
                from work.task_runs u
               where u.queue = q.queue and u.status in ('queued', 'running', 'retrying') and u.available_at <= (select clock_timestamp())
               order by u.available_at, u.run_id
               limit 10001) r
    ) due
    cross join lateral (
      select count(*) as delayed
        from (select
                from work.task_runs u
               where u.queue = q.queue and u.status in ('queued', 'running', 'retrying') and u.available_at > (select clock_timestamp())
               order by u.available_at, u.run_id
               limit 10001) r
    ) later
   order by array_position(array['critical', 'default', 'bulk', 'maintenance'], q.queue);
$$;
