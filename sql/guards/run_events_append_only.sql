-- guards/run_events_append_only: the trail refuses updates, deletes and truncation, whoever asks
-- locks     work.run_events in share row exclusive mode, only when the trigger does not exist yet
do $$
begin
  if not exists (select from pg_trigger where tgrelid = 'work.run_events'::regclass and tgname = 'run_events_append_only') then
    create trigger run_events_append_only before update or delete on work.run_events
      for each row execute function work.refuse_change();
    create trigger run_events_no_truncate before truncate on work.run_events
      for each statement execute function work.refuse_change();
  end if;
end
$$;
