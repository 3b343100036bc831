-- work.due_at: when a new run becomes due (database clock), from a delay or a time; a time in the past means now
-- returns   timestamptz
-- raises    ML005 DELAY_INVALID
-- caller    work.dispatch, work.dispatch_many, work.publish
create or replace function work.due_at(p_delay interval, p_run_at timestamptz) returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  if p_delay is not null and p_run_at is not null then
    raise exception 'DELAY_INVALID: delay and run_at were both given'
      using errcode = 'ML005', hint = 'Give one of them.';
  end if;
  if p_run_at in ('infinity', '-infinity') then
    raise exception 'DELAY_INVALID: run_at is infinite'
      using errcode = 'ML005', hint = 'Give a time that comes, or leave run_at out for now.';
  end if;
  if p_delay is null then
    return greatest(v_now, p_run_at);
  end if;
  if not isfinite(p_delay) then
    raise exception 'DELAY_INVALID: delay is infinite'
      using errcode = 'ML005', hint = 'Give a delay that ends, or leave it out for now.';
  end if;
  if p_delay < interval '0' then
    raise exception 'DELAY_INVALID: delay % is negative', p_delay
      using errcode = 'ML005', hint = 'Give a delay of zero or more, or leave it out for now.';
  end if;
  -- A day is 24 hours, whatever the caller's time zone.
  return greatest(v_now, (v_now at time zone 'UTC' + p_delay) at time zone 'UTC');
exception when datetime_field_overflow then
  raise exception 'DELAY_INVALID: delay % is beyond the calendar', p_delay
    using errcode = 'ML005', hint = 'Give a delay that ends before the year 294276.';
end
$$;
