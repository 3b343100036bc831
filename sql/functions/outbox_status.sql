-- work.outbox_status: both outboxes by queue: what waits for the relay and since when, and what SQS refuses; counts over all tenants
-- returns   a row an outbox and queue
-- caller    sql/views/outbox_status.sql
-- index     outbox_messages_pending_idx, platform_outbox_messages_pending_idx
-- plan      counts end at 10001, from the row that is due longest on
create or replace function work.outbox_status()
returns table (outbox text, queue text, due bigint, oldest_due_s double precision, delayed bigint, refused bigint, most_attempts integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.outbox, q.queue, count(*) filter (where p.available_at <= clock_timestamp()),
         extract(epoch from clock_timestamp() - min(p.available_at) filter (where p.available_at <= clock_timestamp()))::float8,
         count(*) filter (where p.available_at > clock_timestamp()),
         count(*) filter (where p.attempts >= 5), max(p.attempts)
    from unnest(array['critical', 'default', 'bulk', 'maintenance']) with ordinality q (queue, place)
    cross join lateral (
      select * from (
        select 'outbox_messages' as outbox, null::timestamptz as available_at, null::integer as attempts
        union all
        select 'platform_outbox_messages', null, null
      ) none
      union all
      (select 'outbox_messages', o.available_at, o.attempts
         from work.outbox_messages o
        where o.sent_at is null and o.queue = q.queue
        order by o.available_at, o.id
        limit 10001)
      union all
      (select 'platform_outbox_messages', o.available_at, o.attempts
         from work.platform_outbox_messages o
        where o.sent_at is null and o.queue = q.queue
        order by o.available_at, o.id
        limit 10001)
    ) p
   group by p.outbox, q.queue, q.place
   order by p.outbox, q.place;
$$;
