-- work.reopen: opens a new generation of a finished run: counters at zero, due now, an outbox row pending
-- $1 run, $2 deadLetter.generation of the letter that came back (null: an operator's retry), $3 event, $4 worker, $5 its detail
-- returns   the new generation; null where the run is not to be reopened: unfinished, succeeded, skipped, or reopened before by that letter
-- caller    sql/runs/reopen.sql, work.retry
-- index     task_runs_pkey
-- locks     the run row, then its outbox row, until the caller's commit; waits for a relay that holds it
-- note      a cancelled run has no dead letter: only a retry reopens it; the second run of a schedule is no longer exclusive
create or replace function work.reopen(p_run_id uuid, p_mark integer, p_event text, p_worker text, p_detail jsonb) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  r work.task_runs;
begin
  update work.task_runs t
     set status = 'queued', generation = greatest(t.generation, p_mark) + 1,
         failures = 0, crashes = 0, deferrals = 0, interruptions = 0, repairs = 0,
         exclusive = false, progress = 0, available_at = clock_timestamp(), finished_at = null
   where t.run_id = p_run_id
     and (t.status = 'failed' and t.generation <= coalesce(p_mark, t.generation)
          or t.status = 'cancelled' and p_mark is null)
  returning t.* into r;
  if not found then
    return null;
  end if;
  insert into work.run_events (run_id, tenant_id, event, attempt, generation, worker, detail)
  values (r.run_id, r.tenant_id, p_event, 1, r.generation, p_worker, p_detail);
  perform work.reissue(array[r.run_id]);
  return r.generation;
end
$$;
