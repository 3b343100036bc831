-- work.setting_tenant: the tenant of the session (setting app.tenant_id), or null where it is unset or empty
-- returns   bigint
-- raises    ML004 RUN_CONTEXT_MISMATCH where the setting is not a number
-- caller    work.tenant_for, work.run, the row-level policies
create or replace function work.setting_tenant() returns bigint
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
  v_setting text := nullif(current_setting('app.tenant_id', true), '');
begin
  if v_setting is null then
    return null;
  end if;
  -- The range is checked before the cast: a failed one would quote the value under an SQLSTATE of its own.
  if v_setting !~ '^-?[0-9]{1,19}$' or v_setting::numeric not between -9223372036854775808 and 9223372036854775807 then
    raise exception 'RUN_CONTEXT_MISMATCH: the setting app.tenant_id is not a whole number'
      using errcode = 'ML004',
            hint = 'Set it to the id of a tenant: select set_config(''app.tenant_id'', ''42'', true).';
  end if;
  return v_setting::bigint;
end
$$;
