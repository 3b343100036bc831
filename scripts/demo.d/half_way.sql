-- Waits until so many runs are finished and the worker that is to die has a run in hand, then stops it as it stands.
-- :finished   how many
-- $DOOMED     its process id
-- prints      runs finished | runs in its hands: none where its last commit was under way
\getenv doomed DOOMED
select set_config('demo.finished', :'finished', false), set_config('demo.doomed', format('%%-%s-%%', :'doomed'), false) \g /dev/null
do $$
begin
  for i in 1..9000 loop
    exit when (select count(*) from work.task_runs where finished_at is not null) >= current_setting('demo.finished')::bigint
          and exists (select from work.task_runs where status = 'running' and worker like current_setting('demo.doomed'));
    perform pg_sleep(0.01);
  end loop;
end $$;
\! kill -STOP $DOOMED
select pg_sleep(0.1) \g /dev/null
select count(*) filter (where finished_at is not null),
       count(*) filter (where status = 'running' and worker like current_setting('demo.doomed'))
  from work.task_runs;
