-- work.dispatch_many: schedules a run of a task for each payload, in the caller's transaction: all of them or none
-- returns   the ids of the new runs, in the order of their payloads; none for an empty array
-- raises    ML001 UNIT_NOT_IN_CATALOG, ML002 CATALOG_NOT_LOADED, ML003 UNIT_RETIRED, ML004 RUN_CONTEXT_MISMATCH, ML005 DELAY_INVALID,
--           ML006 PAYLOAD_INVALID, ML007 PAYLOAD_TOO_LARGE, ML032 READ_ONLY; 23503 for a tenant that does not exist
-- caller    API teams, in any language; handlers in their effect transaction
-- index     units_pkey, task_runs_pkey, outbox_messages_run_id_key
-- locks     key share on the tenant's row until the caller's commit
-- note      after your commit push a wake: LPUSH monalisa:outbox:wake 1; a lost one costs at most 5 s
create or replace function work.dispatch_many(
  unit      text,
  payloads  jsonb[],
  tenant_id bigint      default null,
  delay     interval    default null,
  run_at    timestamptz default null
) returns uuid[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unit    work.units;
  v_tenant  bigint;
  v_due     timestamptz;
  v_run_ids uuid[];
begin
  perform work.check_writable();
  select u.* into v_unit from work.units u where u.name = dispatch_many.unit and u.kind = 'task';
  if not found then
    perform work.refuse_unit(dispatch_many.unit);
  end if;
  perform work.check_retired(v_unit.name, v_unit.retired_at);
  perform work.check_payloads(dispatch_many.payloads);
  v_tenant := work.tenant_for(v_unit.name, v_unit.context, dispatch_many.tenant_id);
  v_due := work.due_at(dispatch_many.delay, dispatch_many.run_at);
  -- In the order of the payloads also where several are of the same millisecond.
  select coalesce(array_agg(n.id order by n.id), '{}') into v_run_ids
    from (select work.uuid_v7() as id from generate_series(1, cardinality(dispatch_many.payloads))) n;
  perform work.enqueue(array_fill(v_unit, array[cardinality(v_run_ids)]), v_run_ids, dispatch_many.payloads, v_tenant, v_due, null);
  return v_run_ids;
end
$$;
