-- work.failures: what failed for good in the last 24 hours, by unit and failure code, and is not reopened; counts over all tenants
-- returns   a row a unit and code, the newest first
-- caller    sql/views/failures.sql
-- index     task_runs_failed_idx
-- plan      looks at the 10000 newest failed runs at most
create or replace function work.failures()
returns table (unit text, code text, failed_1h bigint, failed_24h bigint, first_failed_at timestamptz, last_failed_at timestamptz)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.unit, coalesce(substring(r.last_error from '^[A-Z][A-Z0-9_]*'), 'UNKNOWN'),
         count(*) filter (where r.finished_at > clock_timestamp() - interval '1 hour'), count(*), min(r.finished_at), max(r.finished_at)
    from (select f.unit, f.last_error, f.finished_at
            from work.task_runs f
           where f.status = 'failed' and f.finished_at > (select clock_timestamp() - interval '24 hours')
           order by f.finished_at desc
           limit 10000) r
   group by 1, 2
   order by 6 desc;
$$;
