-- Waits until so many runs are finished, at most for two minutes.
-- :finished   how many
select set_config('demo.finished', :'finished', false) \g /dev/null
do $$
begin
  for i in 1..2400 loop
    exit when (select count(*) from work.task_runs where finished_at is not null) >= current_setting('demo.finished')::bigint;
    perform pg_sleep(0.05);
  end loop;
end $$;
