-- work.check_retired: a retired unit is accepted with a warning for 7 days, since workers deploy before APIs; then refused
-- raises    ML003 UNIT_RETIRED
-- caller    work.dispatch, work.dispatch_many, work.decide_occurrence
create or replace function work.check_retired(p_name text, p_retired_at timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_retired_at is null then
    return;
  end if;
  if p_retired_at < clock_timestamp() - interval '7 days' then
    raise exception 'UNIT_RETIRED: % was retired at %', p_name, p_retired_at
      using errcode = 'ML003', hint = 'Stop enqueueing it, or bring it back: deploy workers whose catalogue holds it.';
  end if;
  raise warning 'UNIT_RETIRED: % was retired at % and is refused 7 days after that', p_name, p_retired_at
    using hint = 'Stop enqueueing it, or bring it back: deploy workers whose catalogue holds it.';
end
$$;
