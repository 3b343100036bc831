-- work.audit: notes what an operator did by a command, under the name of the session
-- $1 action, $2 target (a queue, a unit or all), $3 reason, $4 detail
-- returns   nothing
-- raises    ML018 REASON_MISSING
-- caller    sql/ops/audit.sql
-- locks     none
create or replace function work.audit(action text, target text, reason text, detail jsonb) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform work.check_reason(audit.reason);
  insert into work.actions (actor, action, target, reason, detail)
  values (session_user, audit.action, audit.target, audit.reason, audit.detail);
end
$$;
