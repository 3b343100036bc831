-- outbox/due: which of these queues have rows that are due, and when the next row of each becomes due
-- $1 queues      text[]
-- $2 cursors     text[], as in outbox/claim
-- $3 lasts       int8[], as in outbox/claim
-- $4 lookback_s  float8[], as in outbox/claim
-- returns   queue text, due bool, wait_s float8 (null where nothing waits)
-- caller    src/outbox.rs
-- index     outbox_messages_pending_idx (queue, available_at, id) where sent_at is null
-- locks     none
-- plan      two index probes a queue; what an idle relay costs
-- note      a row written by hand that is due at infinity never is; it has no difference to now
select q.queue,
       exists (
         select
           from work.outbox_messages o
          where o.sent_at is null
            and o.queue = q.queue
            and (o.available_at, o.id)
                >= (greatest('-infinity', q.cursor::timestamptz, now.at - make_interval(secs => q.lookback_s)), coalesce(q.last, 0))
            and o.available_at <= now.at) as due,
       (select extract(epoch from o.available_at - now.at)::float8
          from work.outbox_messages o
         where o.sent_at is null
           and o.queue = q.queue
           and o.available_at > now.at
           and o.available_at < 'infinity'
         order by o.available_at
         limit 1) as wait_s
  from (select clock_timestamp() as at offset 0) now,
       unnest($1::text[], $2::text[], $3::int8[], $4::float8[]) q (queue, cursor, last, lookback_s)
