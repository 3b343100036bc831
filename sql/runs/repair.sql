-- runs/repair: set runs whose message is lost to be sent anew; a lapsed attempt is a crash, and the fifth fails its run
-- $1 run_ids  uuid[], locked by runs/stranded
-- returns   run_id uuid, status text
-- caller    src/ledger.rs, which re-issues them in the same transaction
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     run rows that this transaction holds already
-- note      looks again for pending rows: one written before the run was locked is seen only by a statement that begins after that
with r as materialized (
  select r.run_id, r.status = 'running' as lapsed, r.started_at, r.worker, r.failures + r.crashes + 1 as attempt,
         r.status = 'running' and r.failures + r.crashes >= 4 as used_up
    from work.task_runs r
   where r.run_id = any ($1)
     and coalesce((select o.sent_at is not null from work.outbox_messages o where o.run_id = r.run_id), true)
     and coalesce((select o.sent_at is not null from work.platform_outbox_messages o where o.run_id = r.run_id), true)
), u as (
  update work.task_runs t
     set status = case when r.used_up then 'failed' when r.lapsed then 'queued' else t.status end,
         crashes = t.crashes + r.lapsed::int4, repairs = t.repairs + 1, token = null, lease_expires_at = null,
         available_at = clock_timestamp(),
         last_error = case when r.used_up
                           then 'WORKER_LOST: the worker died while it ran this, ' || (t.crashes + 1) || ' of its five attempts; its message is lost'
                           else t.last_error end,
         finished_at = case when r.used_up then clock_timestamp() end
    from r
   where t.run_id = r.run_id
     and t.run_id = any ($1)
  returning t.run_id, t.tenant_id, t.status, t.generation
), trail as (
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker, detail)
  select u.run_id, u.tenant_id, e.event, r.attempt, u.generation, e.at, r.worker, e.detail
    from u
    join r on r.run_id = u.run_id,
         lateral (values
           (1, r.lapsed, 'started', r.started_at, null::jsonb),
           (2, r.lapsed, 'lost', clock_timestamp(), null),
           (3, r.used_up, 'failed', clock_timestamp(), pg_catalog.jsonb_build_object('code', 'WORKER_LOST')),
           (4, not r.used_up, 'repaired', clock_timestamp(), pg_catalog.jsonb_build_object('reason', 'its queue was served past it'))
         ) e (ord, wanted, event, at, detail)
   where e.wanted
   order by u.run_id, e.ord
)
select u.run_id, u.status from u
