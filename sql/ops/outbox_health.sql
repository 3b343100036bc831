-- ops/outbox_health: what waits in both outboxes, by queue, and the rows that SQS refused most often
-- returns   outbox text, queue text, pending int8 (due now, at most 10001), oldest_s float8, refused jsonb (id, run_id, attempts; at most 3)
-- caller    src/doctor.rs
-- index     outbox_messages_pending_idx, platform_outbox_messages_pending_idx
-- locks     none
-- plan      reads at most some ten thousand rows a queue and table, from the oldest on
select t.outbox, q.queue, t.pending, t.oldest_s, t.refused
  from unnest(array['critical', 'default', 'bulk', 'maintenance']) q (queue),
       lateral (
         select 'outbox_messages' as outbox, count(*) filter (where p.available_at <= clock_timestamp()) as pending,
                extract(epoch from clock_timestamp() - min(p.available_at) filter (where p.available_at <= clock_timestamp()))::float8 as oldest_s,
                (select jsonb_agg(jsonb_build_object('id', w.id, 'run_id', w.run_id, 'attempts', w.attempts))
                   from (select unnest((array_agg(p.id order by p.attempts desc) filter (where p.attempts >= 5))[:3]) as id) i
                   join work.outbox_messages w on w.id = i.id) as refused
           from (select o.id, o.available_at, o.attempts
                   from work.outbox_messages o
                  where o.sent_at is null and o.queue = q.queue
                  order by o.available_at, o.id
                  limit 10001) p
         union all
         select 'platform_outbox_messages', count(*) filter (where p.available_at <= clock_timestamp()),
                extract(epoch from clock_timestamp() - min(p.available_at) filter (where p.available_at <= clock_timestamp()))::float8,
                (select jsonb_agg(jsonb_build_object('id', w.id, 'run_id', w.run_id, 'attempts', w.attempts))
                   from (select unnest((array_agg(p.id order by p.attempts desc) filter (where p.attempts >= 5))[:3]) as id) i
                   join work.platform_outbox_messages w on w.id = i.id)
           from (select o.id, o.available_at, o.attempts
                   from work.platform_outbox_messages o
                  where o.sent_at is null and o.queue = q.queue
                  order by o.available_at, o.id
                  limit 10001) p
       ) t
