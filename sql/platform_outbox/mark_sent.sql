-- platform_outbox/mark_sent: mark the claimed rows that SQS took
-- $1 ids    int8[]
-- returns   nothing; the row count is checked
-- caller    src/outbox.rs, in the claiming transaction and nowhere else
-- index     platform_outbox_messages_pkey
-- locks     rows that the pass holds already
update work.platform_outbox_messages o
   set sent_at = clock_timestamp()
 where o.id = any ($1)
   and o.sent_at is null
