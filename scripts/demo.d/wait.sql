-- Waits until so many runs are finished, and (for :busy) until this worker has a run in hand; gives up after a while.
-- :finished   how many
-- :busy       pattern of a worker's name, or empty
-- :patience   seconds
select set_config('demo.finished', :'finished', false), set_config('demo.busy', :'busy', false), set_config('demo.patience', :'patience', false) \g /dev/null
do $$
declare
  v_until timestamptz := clock_timestamp() + make_interval(secs => current_setting('demo.patience')::float8);
  v_busy  text := current_setting('demo.busy');
begin
  loop
    exit when (select count(*) from work.task_runs where finished_at is not null) >= current_setting('demo.finished')::bigint
          and (v_busy = '' or exists (select from work.task_runs where status = 'running' and worker like v_busy));
    if clock_timestamp() > v_until then
      raise exception 'waited % s for % finished runs; there are %', current_setting('demo.patience'), current_setting('demo.finished'),
        (select count(*) from work.task_runs where finished_at is not null);
    end if;
    perform pg_sleep(0.01);
  end loop;
end $$;
