-- testing/scheduled: what this transaction has dispatched and published so far, in that order; the last thousand
-- $1 tenant    int8, newest row of the outbox of tenants before that
-- $2 platform  int8, the same of the other outbox
-- returns   run_id uuid, unit text, event_type text, event_version int4, tenant_id int8, queue text, payload text, available_at timestamptz
-- caller    src/testing/trial.rs
-- index     outbox_messages_pkey, platform_outbox_messages_pkey, task_runs_pkey
-- locks     none
-- note      what others commit meanwhile is visible too: a row of this transaction is one whose transaction has not ended
with o as (
  (select o.run_id, o.xmin as made_by from work.outbox_messages o where o.id > $1 order by o.id desc limit 1000)
  union all
  (select o.run_id, o.xmin as made_by from work.platform_outbox_messages o where o.id > $2 order by o.id desc limit 1000)
), own as materialized (
  select o.run_id
    from o
   -- xmin has no epoch; it is that of this transaction.
   where pg_xact_status((pg_current_xact_id()::text::int8 / 4294967296 * 4294967296 + o.made_by::text::int8)::text::xid8) = 'in progress'
)
select r.run_id, r.unit, r.event_type, r.event_version, r.tenant_id, r.queue, r.payload::text as payload, r.available_at
  from work.task_runs r
 where r.run_id = any (array(select own.run_id from own))
 order by r.created_at, r.run_id
