-- work.retry: runs a failed or cancelled run again, for an operator: a new generation with five new attempts
-- returns   the resulting status, queued
-- raises    ML017 RUN_NOT_FOUND, ML018 REASON_MISSING, ML019 RETRY_REFUSED; 55P03 where a relay holds its outbox row for more than 10 s
-- caller    operators, by hand or by a command
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row, until the commit
-- note      its dead letter stays where it is and is stale from then on; after your commit push a wake, as after a dispatch
create or replace function work.retry(run_id uuid, reason text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
  r work.task_runs;
begin
  perform work.check_reason(retry.reason);
  select t.* into r from work.task_runs t where t.run_id = retry.run_id for no key update;
  if not found then
    perform work.refuse_run(retry.run_id);
  end if;
  if r.status not in ('failed', 'cancelled') then
    raise exception 'RETRY_REFUSED: run % is %', r.run_id, r.status
      using errcode = 'ML019',
            hint = case r.status
                     when 'succeeded' then 'Its effect is committed and would happen twice. For new work dispatch a new run.'
                     when 'skipped' then 'It was never wanted. Dispatch a new run.'
                     else 'It is not finished. To begin it anew cancel it first.'
                   end;
  end if;
  perform work.reopen(r.run_id, null, 'retried', null, jsonb_build_object('reason', retry.reason, 'by', session_user, 'was', r.status));
  insert into work.actions (actor, action, target, reason, detail)
  values (session_user, 'retry', r.run_id, retry.reason, jsonb_build_object('was', r.status));
  -- Not always queued: a run whose tenant was deleted has failed with TENANT_GONE.
  return (select t.status from work.task_runs t where t.run_id = r.run_id);
end
$$;
