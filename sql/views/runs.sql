-- views/runs: the newest runs of the tenant in app.tenant_id (where that is unset, those without one), without payload and outcome
-- caller    observers and operators
-- index     task_runs_pkey
-- locks     none
-- plan      as work.runs(): those of the tenant among the 10000 newest of all; an older one by work.runs(its id)
create or replace view work.runs with (security_barrier) as
select s.run_id, s.tenant_id, s.unit, s.kind, s.queue, s.context, s.status, s.attempt, s.generation, s.starts, s.failures, s.crashes,
       s.deferrals, s.interruptions, s.repairs, s.worker, s.lease_expires_at, s.progress, s.schedule, s.scheduled_for, s.event_type,
       s.event_version, s.traceparent, s.last_error, s.created_at, s.available_at, s.started_at, s.finished_at
  from work.runs() s;
do $$
declare
  v_column text;
begin
  -- They mean what they mean in the table.
  for v_column in
    select a.attname from pg_attribute a where a.attrelid = 'work.runs'::regclass and a.attnum > 0 and a.attname <> 'attempt'
  loop
    execute format('comment on column work.runs.%I is %L', v_column,
                   (select col_description(t.attrelid, t.attnum) from pg_attribute t where t.attrelid = 'work.task_runs'::regclass and t.attname = v_column));
  end loop;
  comment on column work.runs.attempt is 'Which of its five tries it is at, or ended with: failures + crashes + 1.';
end
$$;
