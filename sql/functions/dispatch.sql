-- work.dispatch: schedules one run of a task in the caller's transaction
-- returns   uuid, the run's id; with an idempotency key the first run's
-- raises    ML001 UNIT_NOT_IN_CATALOG, ML002 CATALOG_NOT_LOADED, ML003 UNIT_RETIRED, ML004 RUN_CONTEXT_MISMATCH, ML005 DELAY_INVALID,
--           ML006 PAYLOAD_INVALID, ML007 PAYLOAD_TOO_LARGE, ML008 IDEMPOTENCY_CONFLICT, ML015 IDEMPOTENCY_KEY_INVALID, ML032 READ_ONLY; 23503 for a tenant that does not exist
-- caller    API teams, in any language; handlers in their effect transaction
-- index     units_pkey, task_runs_pkey, outbox_messages_run_id_key
-- locks     key share on the tenant's row until the caller's commit; nothing else that another caller waits for
-- note      after your commit push a wake: LPUSH monalisa:outbox:wake 1; a lost one costs at most 5 s
create or replace function work.dispatch(
  unit            text,
  payload         jsonb       default '{}',
  tenant_id       bigint      default null,
  delay           interval    default null,
  run_at          timestamptz default null,
  idempotency_key text        default null,
  traceparent     text        default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unit    work.units;
  v_tenant  bigint;
  v_due     timestamptz;
  v_run_id  uuid := work.uuid_v7();
  v_run_ids uuid[];
begin
  perform work.check_writable();
  select u.* into v_unit from work.units u where u.name = dispatch.unit and u.kind = 'task';
  if not found then
    perform work.refuse_unit(dispatch.unit);
  end if;
  perform work.check_retired(v_unit.name, v_unit.retired_at);
  perform work.check_payload(dispatch.payload);
  v_tenant := work.tenant_for(v_unit.name, v_unit.context, dispatch.tenant_id);
  v_due := work.due_at(dispatch.delay, dispatch.run_at);
  if dispatch.idempotency_key is not null then
    v_run_ids := work.claim_key(v_tenant, dispatch.idempotency_key, array[v_run_id], 'task ' || v_unit.name, dispatch.payload);
    if v_run_ids <> array[v_run_id] then
      return v_run_ids[1];
    end if;
  end if;
  perform work.enqueue(array[v_unit], array[v_run_id], array[dispatch.payload], v_tenant, v_due, work.checked_traceparent(dispatch.traceparent));
  return v_run_id;
end
$$;
