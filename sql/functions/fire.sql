-- work.fire: fires an occurrence of a schedule, once, however often and by however many it is asked for
-- returns   uuid, the run's id; null where the occurrence has a run already, or is skipped since an earlier run of the schedule is unfinished
-- raises    as work.decide_occurrence
-- caller    schedulers: pg_cron, psql, whatever can call SQL; as worker or operator
-- index     units_pkey, task_runs_origin_key, task_runs_exclusive_key, platform_outbox_messages_run_id_key
-- locks     as work.decide_occurrence
-- note      after your commit push a wake: LPUSH monalisa:outbox:wake 1; a lost one costs at most 5 s
create or replace function work.fire(schedule text, scheduled_for timestamptz) returns uuid
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select case when d.decision = 'fired' then d.run_id end from work.decide_occurrence(fire.schedule, fire.scheduled_for) d;
$$;
