-- outbox/mark_failed: pause claimed rows that were not sent, and count the failed send where there was one; they stay pending
-- $1 ids      int8[]
-- $2 pauses   float8[], seconds, in the same order
-- $3 tries    int4[], 1 for a failed send, 0 for a row left alone beside one
-- returns   nothing; the row count is checked
-- caller    src/outbox.rs, in the claiming transaction and nowhere else
-- index     outbox_messages_pkey
-- locks     rows that the pass holds already
-- note      attempts saturates; there is no give-up limit. One time for all: rows that failed together are due together
update work.outbox_messages o
   set attempts = least(o.attempts, 2147483647 - f.tries) + f.tries,
       available_at = (select clock_timestamp()) + make_interval(secs => f.pause)
  from unnest($1::int8[], $2::float8[], $3::int4[]) f (id, pause, tries)
 where o.id = f.id
   and o.sent_at is null
