-- work.refuse_transition: trigger of work.task_runs; refuses a change of status that work.transitions() does not list
-- raises    ML012 TRANSITION_REFUSED
-- caller    trigger task_runs_transition
create or replace function work.refuse_transition() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (
    select from work.transitions() t
     where t.to_status = new.status
       and t.from_status is not distinct from case when tg_op = 'UPDATE' then old.status end
  ) then
    raise exception 'TRANSITION_REFUSED: run % cannot go from % to %',
        new.run_id, case when tg_op = 'UPDATE' then old.status else 'new' end, new.status
      using errcode = 'ML012',
            hint = 'select * from work.transitions() lists what is allowed.';
  end if;
  return new;
end
$$;
