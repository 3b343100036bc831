-- work.tenant_for: the tenant a new run of this context gets, from what the caller passed and the session's setting
-- returns   bigint, null for platform and system work
-- raises    ML004 RUN_CONTEXT_MISMATCH
-- caller    work.dispatch, work.dispatch_many, work.publish
create or replace function work.tenant_for(p_unit text, p_context text, p_tenant_id bigint) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_setting bigint;
begin
  if p_context <> 'tenant' then
    if p_tenant_id is not null then
      raise exception 'RUN_CONTEXT_MISMATCH: % is % work and takes no tenant, got tenant_id %', p_unit, p_context, p_tenant_id
        using errcode = 'ML004', hint = 'Leave tenant_id out, or declare the unit with context "tenant".';
    end if;
    return null;
  end if;
  v_setting := work.setting_tenant();
  if p_tenant_id is null and v_setting is null then
    raise exception 'RUN_CONTEXT_MISMATCH: % is tenant work and needs a tenant', p_unit
      using errcode = 'ML004', hint = 'Pass tenant_id => …, or set app.tenant_id in the transaction.';
  end if;
  if p_tenant_id <> v_setting then
    raise exception 'RUN_CONTEXT_MISMATCH: tenant_id % is not the tenant % of this session', p_tenant_id, v_setting
      using errcode = 'ML004', hint = 'Leave tenant_id out, or set app.tenant_id to the same tenant.';
  end if;
  return coalesce(p_tenant_id, v_setting);
end
$$;
