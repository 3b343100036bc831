-- Outboxes of a service whose purge has not run for long, and keys: :old rows sent 8 to 15 days ago, :young ones sent in the last 6 days,
-- :pending ones that are due tomorrow, and :keys keys that have expired. A quarter of the rows is of work without a tenant.
-- :old, :young, :pending, :keys  how many
set session_replication_role = replica;
set synchronous_commit = off;
insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, created_at, sent_at)
select i % 20 + 1, work.uuid_v7(), 'default', jsonb_build_object('v', 1, 'filler', repeat('x', 300)), t.at, t.at, t.at
  from generate_series(1, :old * 3 / 4 + :young * 3 / 4) i,
       lateral (select case when i <= :old * 3 / 4 then now() - interval '15 days' + i * (interval '7 days' / (:old * 3 / 4))
                            else now() - random() * interval '6 days' end as at) t;
insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, created_at)
select i % 20 + 1, work.uuid_v7(), 'default', '{"v": 1}', now() + interval '1 day', now() - interval '30 days' from generate_series(1, :pending) i;
insert into work.platform_outbox_messages (run_id, queue, envelope, available_at, created_at, sent_at)
select work.uuid_v7(), 'default', jsonb_build_object('v', 1, 'filler', repeat('x', 300)), t.at, t.at, t.at
  from generate_series(1, :old / 4 + :young / 4) i,
       lateral (select case when i <= :old / 4 then now() - interval '15 days' + i * (interval '7 days' / (:old / 4))
                            else now() - random() * interval '6 days' end as at) t;
insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
select i % 20 + 1, i::text, array[gen_random_uuid()], '', now() - i * interval '1 ms' from generate_series(1, :keys) i;
set session_replication_role = origin;
vacuum analyze work.outbox_messages, work.platform_outbox_messages, work.idempotency_keys;
checkpoint;
