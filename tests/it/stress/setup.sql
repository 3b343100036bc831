-- What the stress keeps beside schema `work`, so that proof.sql can compare.

-- Written in the transaction of the dispatch.
create table public.dispatched (seq bigint generated always as identity primary key, run_id uuid not null unique);
-- Runs of dispatches that were rolled back.
create table public.rolled_back (run_id uuid not null);
-- Runs of which a message was taken out of SQS by hand: only these may be repaired.
create table public.lost (run_id uuid not null);
-- Rows that were deleted, and how their run stood then.
create table public.deleted (place text not null, run_id uuid not null, pending boolean not null, status text);

create function public.note_delete() returns trigger language plpgsql security definer as $$
begin
  insert into public.deleted (place, run_id, pending, status)
  select tg_table_name, old.run_id, tg_table_name like '%outbox%' and to_jsonb(old) ->> 'sent_at' is null,
         (select r.status from work.task_runs r where r.run_id = old.run_id);
  return null;
end $$;
create trigger note_delete after delete on work.outbox_messages for each row execute function public.note_delete();
create trigger note_delete after delete on work.platform_outbox_messages for each row execute function public.note_delete();
create trigger note_delete after delete on work.task_runs for each row execute function public.note_delete();

-- Commits of some effects take a moment on the server, and no cancel ends them: as where a standby is waited for.
create function public.commit_slowly() returns trigger language plpgsql as $$
declare
  v_until timestamptz := clock_timestamp() + interval '1.2 s';
begin
  while clock_timestamp() < v_until loop
    begin
      perform pg_sleep(0.02);
    exception when query_canceled then
      null;
    end;
  end loop;
  return null;
end $$;
create constraint trigger commit_slowly after insert on public.effects deferrable initially deferred
  for each row when (new.note = 'slow') execute function public.commit_slowly();

-- Whoever tries to change what is final is refused, and may not get to log it: a sequence keeps the count through the rollback.
create sequence public.refused;
create function public.note_refused() returns trigger language plpgsql security definer as $$
begin
  perform nextval('public.refused');
  return new;
end $$;
create trigger a_note_refused before update on work.task_runs for each row
  when (old.status in ('succeeded', 'failed', 'cancelled', 'skipped') and new.status <> old.status and new.generation = old.generation)
  execute function public.note_refused();
