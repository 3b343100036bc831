-- work.refuse_unit: says why a task cannot be dispatched by this name
-- raises    ML002 CATALOG_NOT_LOADED, ML001 UNIT_NOT_IN_CATALOG
-- caller    work.dispatch, work.dispatch_many, work.decide_occurrence
create or replace function work.refuse_unit(p_name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_unit work.units;
  v_near text;
begin
  if not exists (select from work.catalogues) then
    raise exception 'CATALOG_NOT_LOADED: no catalogue of units has been loaded into this database'
      using errcode = 'ML002', hint = 'Run `workers migrate`, which loads it, or call work.load_catalogue.';
  end if;
  select u.* into v_unit from work.units u where u.name = p_name;
  if found then
    raise exception 'UNIT_NOT_IN_CATALOG: % is a subscriber of the event % v%, not a task', p_name, v_unit.event_type, v_unit.event_version
      using errcode = 'ML001', hint = format('Publish the event: work.publish(%L, …, version => %s).', v_unit.event_type, v_unit.event_version);
  end if;
  v_near := work.nearest_units(p_name);
  raise exception 'UNIT_NOT_IN_CATALOG: there is no task named %', coalesce(quote_literal(left(p_name, 80)), 'null')
    using errcode = 'ML001',
          hint = coalesce('Did you mean: ' || v_near || '? ', '') || 'Deploy the workers, and with them the catalogue, before the API.';
end
$$;
