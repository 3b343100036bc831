-- guards/task_runs_transition: every new status of a run passes work.refuse_transition
-- locks     work.task_runs in share row exclusive mode, only when the trigger does not exist yet
do $$
begin
  if not exists (select from pg_trigger where tgrelid = 'work.task_runs'::regclass and tgname = 'task_runs_transition') then
    create trigger task_runs_transition before update on work.task_runs
      for each row when (old.status is distinct from new.status) execute function work.refuse_transition();
    create trigger task_runs_enqueue before insert on work.task_runs
      for each row when (new.status <> 'queued') execute function work.refuse_transition();
  end if;
end
$$;
