-- work.renew: sends an unfinished run again, for an operator who throws the message away that SQS moved by itself
-- returns   renewed; over: finished; no_run
-- raises    55P03 where a relay holds its outbox row for more than 10 s
-- caller    sql/ops/renew.sql
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row, until the commit
-- note      safe to repeat and in parallel: one copy more changes nothing
create or replace function work.renew(run_id uuid) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
  v_status text;
begin
  select t.status into v_status from work.task_runs t where t.run_id = renew.run_id for no key update;
  if not found then
    return 'no_run';
  end if;
  if v_status in ('queued', 'running', 'retrying') then
    perform work.reissue(array[renew.run_id]);
    return 'renewed';
  end if;
  return 'over';
end
$$;
