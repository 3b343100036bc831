-- work.redrive: takes a dead letter back, for an operator who deletes it from its queue after the commit
-- $1 run, $2 generation the letter was made for, $3 why
-- returns   reopened; renewed: unfinished, its message is sent again; over: finished otherwise or reopened since; no_run
-- raises    ML018 REASON_MISSING; ML035 GENERATION_INVALID; 55P03 where a relay holds its outbox row for more than 10 s
-- caller    sql/ops/redrive.sql
-- index     task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the run row, then its outbox row, until the commit
-- note      safe to repeat and in parallel: the generation lets each letter reopen its run once
create or replace function work.redrive(run_id uuid, generation integer, reason text) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
  r work.task_runs;
begin
  perform work.check_reason(redrive.reason);
  select t.* into r from work.task_runs t where t.run_id = redrive.run_id for no key update;
  if not found then
    return 'no_run';
  end if;
  if redrive.generation is null or redrive.generation < 1 or redrive.generation - 1000 > r.generation then
    raise exception 'GENERATION_INVALID: the run has the generation %, and no dead letter was made for %', r.generation, coalesce(redrive.generation::text, 'null')
      using errcode = 'ML035', hint = 'Pass the generation that stands in the dead letter; to run it again without one call work.retry.';
  end if;
  if r.generation > redrive.generation or r.status in ('succeeded', 'cancelled', 'skipped') then
    return 'over';
  end if;
  if r.status <> 'failed' then
    -- SQS moved its message away by itself.
    perform work.reissue(array[r.run_id]);
    return 'renewed';
  end if;
  perform work.reopen(r.run_id, redrive.generation, 'redriven', null, jsonb_build_object('reason', redrive.reason, 'by', session_user));
  insert into work.actions (actor, action, target, reason, detail)
  values (session_user, 'redrive', r.run_id, redrive.reason, jsonb_build_object('generation', redrive.generation));
  return 'reopened';
end
$$;
