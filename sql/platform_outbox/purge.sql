-- platform_outbox/purge: delete one batch of rows that were sent more than seven days ago; pending rows never
-- $1 cursor  text: sent_at of the last row of the batch before, or null
-- $2 limit   int8
-- returns   removed int8, more bool (the batch was full), reached text (the next cursor; null where nothing was found)
-- caller    src/outbox.rs, for src/units/maintenance_purge.rs, each batch a transaction of its own
-- index     platform_outbox_messages_sent_idx (sent_at) where sent_at is not null; platform_outbox_messages_pkey
-- locks     the deleted rows, skip locked: a row that is being re-issued is left alone
-- plan      index scans: the array keeps a generic plan from joining with a scan of the table; a purge that finds nothing costs one probe
-- note      the cursor keeps batches flat while a long transaction elsewhere keeps the entries of deleted rows alive
-- note      168 hours: seven days have 167 or 169 where the session's time zone changes to or from summer time
with old as materialized (
  select o.id, o.sent_at
    from work.platform_outbox_messages o
   where o.sent_at is not null
     and o.sent_at >= (select greatest('-infinity', $1::text::timestamptz))
     and o.sent_at < (select clock_timestamp() - interval '168 hours')
   order by o.sent_at
   limit $2
     for update skip locked
), gone as (
  delete from work.platform_outbox_messages o
   where o.id = any (array (select old.id from old))
  returning 1
)
select (select count(*) from gone) as removed, (select count(*) from old) >= $2 as more, (select max(old.sent_at)::text from old) as reached
