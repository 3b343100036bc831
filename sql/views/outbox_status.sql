-- views/outbox_status: both outboxes by queue: what waits for the relay and since when, and what SQS refuses; counts over all tenants
-- caller    observers and operators, dashboards
-- index     outbox_messages_pending_idx, platform_outbox_messages_pending_idx
-- locks     none
-- plan      as work.outbox_status(): bounded, whatever waits
create or replace view work.outbox_status with (security_barrier) as
select s.outbox, s.queue, s.due, s.oldest_due_s, s.delayed, s.refused, s.most_attempts
  from work.outbox_status() s;
comment on column work.outbox_status.outbox is 'The table: outbox_messages of tenants, platform_outbox_messages of all other work.';
comment on column work.outbox_status.queue is 'The queue that the rows go to.';
comment on column work.outbox_status.due is 'Rows that a relay should have sent. The columns look at the 10001 rows that are due first; a sum of 10001 means more.';
comment on column work.outbox_status.oldest_due_s is 'For how many seconds the first of them has been due. The number to watch.';
comment on column work.outbox_status.delayed is 'Rows whose time has not come: delays, backoff, pauses after a refusal.';
comment on column work.outbox_status.refused is 'Rows that SQS did not take five times or more.';
comment on column work.outbox_status.most_attempts is 'The most failed sends of one row; null where nothing is pending.';
