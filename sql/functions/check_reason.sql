-- work.check_reason: refuses an operator's act without a reason: the audit and the trail would not say why
-- raises    ML018 REASON_MISSING
-- caller    work.cancel, work.retry, work.redrive, work.audit
create or replace function work.check_reason(p_reason text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(p_reason, '') !~ '\S' or length(p_reason) > 1000 then
    raise exception 'REASON_MISSING: the reason is empty or longer than 1000 characters'
      using errcode = 'ML018', hint = 'Say in a sentence why; it is kept in work.operator_actions and in the trail of the run.';
  end if;
end
$$;
