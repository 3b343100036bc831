-- queues/serve: note how far a queue has been served, and read the clock before its next receive
-- $1 queue  text
-- $2 seen   timestamptz: what was due before this was offered to a worker; null where nothing is known
-- returns   now timestamptz
-- caller    src/ledger.rs, before each receive; it also shows that PostgreSQL can be reached and written to
-- locks     the queue's row, skip locked, for this statement: only a second further on it is written, whoever serves the queue
with behind as materialized (
  select q.queue
    from work.queue_seen q
   where q.queue = $1
     and q.seen_until < $2::timestamptz - interval '1 second'
     for no key update skip locked
), noted as (
  update work.queue_seen q
     set seen_until = $2
    from behind b
   where q.queue = b.queue
)
select clock_timestamp() as now
