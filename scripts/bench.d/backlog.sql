-- So many runs at once, with their outbox rows, as if they had been dispatched one by one.
-- :rows  how many
begin;
insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload)
select work.uuid_v7(), i % 20 + 1, 't.ok', 'task', 'default', 'tenant', '{"note": "backlog"}' from generate_series(1, :rows) i;
select work.reissue(array_agg(run_id)) from work.task_runs where status = 'queued' \g /dev/null
commit;
analyze work.task_runs, work.outbox_messages;
