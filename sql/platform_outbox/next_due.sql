-- platform_outbox/next_due: how long until the next row that is not yet due, over these queues
-- $1 queues   text[]
-- returns   seconds float8; null where nothing waits
-- caller    src/outbox.rs
-- index     platform_outbox_messages_pending_idx (queue, available_at, id) where sent_at is null
-- locks     none
-- plan      one index probe a queue
-- note      a row written by hand that is due at infinity never is; it has no difference to now
select extract(epoch from min(n.available_at) - clock_timestamp())::float8 as seconds
  from unnest($1::text[]) q (queue),
       lateral (
         select o.available_at
           from work.platform_outbox_messages o
          where o.sent_at is null
            and o.queue = q.queue
            and o.available_at > (select clock_timestamp())
            and o.available_at < 'infinity'
          order by o.available_at
          limit 1) n
