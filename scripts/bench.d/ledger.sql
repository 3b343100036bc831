-- A ledger of a service that is behind: :runs unfinished ones, :finished finished ones. Every run was sent an hour ago or earlier, half of the
-- unfinished ones at one time. Of every :runs / :lost one has lost its message; of the others half run under a lease, half were sent again.
-- :runs, :lost, :finished  how many
set session_replication_role = replica;
set synchronous_commit = off;
insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, finished_at, created_at, available_at)
select work.uuid_v7(), i % 20 + 1, 't.ok', 'task', 'default', 'tenant', '{}', 'succeeded', t.at, t.at, t.at
  from generate_series(1, :finished) i, lateral (select now() - interval '1 hour' - (:finished - i) * interval '50 ms' as at) t;
insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, token, lease_expires_at, repairs, created_at, available_at)
select work.uuid_v7(), i % 20 + 1, 't.ok', 'task', 'default', 'tenant', '{"note": "repaired"}', case k.kind when 'held' then 'running' else 'queued' end,
       case k.kind when 'held' then gen_random_uuid() end, case k.kind when 'held' then now() + interval '3 hours' end,
       case k.kind when 'sent again' then 10 else 0 end, t.at, t.at
  from generate_series(1, :runs) i,
       lateral (select case when i % (:runs / :lost) = 0 then 'lost' when i % 2 = 0 then 'held' else 'sent again' end as kind) k,
       lateral (select now() - interval '1 hour' - case when i % 4 < 2 then interval '1 hour' else i * interval '20 ms' end as at) t;
insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
select r.tenant_id, r.run_id, 'default', '{}', r.available_at, r.available_at
  from work.task_runs r
 where r.status in ('queued', 'running');
update work.queue_seen set seen_until = now();
set session_replication_role = origin;
vacuum analyze work.task_runs;
vacuum analyze work.outbox_messages;
checkpoint;
