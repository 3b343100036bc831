-- platform_outbox/purge: delete one batch of rows that were sent more than seven days ago; pending rows never
-- $1 limit  int8
-- returns   nothing; the row count is what was removed
-- caller    src/units/maintenance_purge.rs, each batch a transaction of its own
-- index     platform_outbox_messages_sent_idx (sent_at) where sent_at is not null; platform_outbox_messages_pkey
-- locks     the deleted rows, skip locked: a row that is being re-issued is left alone
-- plan      index scans: the array keeps a generic plan from joining with a scan of the table; a purge that finds nothing costs one probe
with old as materialized (
  select o.id
    from work.platform_outbox_messages o
   where o.sent_at is not null
     and o.sent_at < (select clock_timestamp() - interval '7 days')
   order by o.sent_at
   limit $1
     for update skip locked
)
delete from work.platform_outbox_messages o
 where o.id = any (array (select old.id from old))
