-- work.succeed: finishes a run in the transaction of its effect: trail, outcome and state, or it raises and nothing commits
-- $1 run, $2 token, $3 outcome
-- raises    ML010 TRANSACTION_ENDED where this is not the transaction the runtime opened, ML011 LEASE_LOST where the token is not current
-- caller    sql/runs/succeed.sql
-- index     task_runs_pkey
-- locks     the run row until the commit
-- note      holds no row in a variable: a session that did would fail from then on when a column's type is altered
create or replace function work.succeed(p_run_id uuid, p_token uuid, p_outcome jsonb) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Set locally when the runtime opened the transaction: gone after a commit or rollback inside the handler.
  if current_setting('work.token', true) is distinct from p_token::text then
    raise exception 'TRANSACTION_ENDED: the handler ended the effect transaction itself'
      using errcode = 'ML010', hint = 'Do not commit or roll back run.transaction(); for transactions of your own use run.connection().';
  end if;
  with r as (
    update work.task_runs t
       set status = 'succeeded', token = null, lease_expires_at = null, outcome = p_outcome, progress = 100,
           finished_at = clock_timestamp()
     where t.run_id = p_run_id and t.token = p_token
    returning t.run_id, t.tenant_id, t.failures + t.crashes + 1 as attempt, t.generation, t.worker, t.started_at, t.finished_at
  )
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, worker)
  select r.run_id, r.tenant_id, e.event, r.attempt, r.generation, e.at, r.worker
    from r
    cross join lateral (values (1, 'started', r.started_at), (2, 'succeeded', r.finished_at)) e (ord, event, at)
   order by e.ord;
  if not found then
    raise exception 'LEASE_LOST: run % is no longer held by this attempt', p_run_id
      using errcode = 'ML011', hint = 'Another worker took it over, or it was cancelled. Nothing of this attempt was committed.';
  end if;
end
$$;
