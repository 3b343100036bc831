-- work.reopen: opens a new generation of a finished run: counters at zero, due now, an outbox row pending
-- $1 run, $2 deadLetter.generation of the letter that came back (null: an operator's retry), $3 event, $4 worker, $5 its detail
-- returns   the new generation; null where the run is not to be reopened: unfinished, succeeded, skipped, or reopened before by that letter
-- caller    sql/runs/reopen.sql, work.retry
-- index     task_runs_pkey
-- locks     the run row, then its outbox row, until the caller's commit; waits for a relay that holds it
-- note      a mark that is far ahead is made by hand: a ledger that was restored is behind by what operators reopened since
-- note      holds no row in a variable: a session that did would fail from then on when a column's type is altered
-- note      a cancelled run has no dead letter: only a retry reopens it; the second run of a schedule is no longer exclusive
create or replace function work.reopen(p_run_id uuid, p_mark integer, p_event text, p_worker text, p_detail jsonb) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_generation integer;
begin
  with r as (
    update work.task_runs t
       set status = 'queued', generation = greatest(t.generation, p_mark) + 1,
           failures = 0, crashes = 0, deferrals = 0, interruptions = 0, repairs = 0,
           exclusive = false, progress = 0, available_at = clock_timestamp(), finished_at = null
     where t.run_id = p_run_id
       and (t.status = 'failed' and t.generation <= coalesce(p_mark, t.generation) and (p_mark is null or p_mark - 1000 <= t.generation)
            or t.status = 'cancelled' and p_mark is null)
    returning t.run_id, t.tenant_id, t.generation
  )
  insert into work.run_events as e (run_id, tenant_id, event, attempt, generation, worker, detail)
  select r.run_id, r.tenant_id, p_event, 1, r.generation, p_worker, p_detail from r
  returning e.generation into v_generation;
  if found then
    perform work.reissue(array[p_run_id]);
  end if;
  return v_generation;
end
$$;
