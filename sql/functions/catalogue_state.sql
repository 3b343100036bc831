-- work.catalogue_state: whether any catalogue is loaded, and whether one of them is this
-- returns   loaded, same
-- caller    sql/catalogue/matches.sql
create or replace function work.catalogue_state(catalogue jsonb) returns table (loaded boolean, same boolean)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select count(*) > 0,
         count(*) filter (where c.hash = encode(sha256(convert_to(catalogue_state.catalogue::text, 'UTF8')), 'hex')) > 0
    from work.catalogues c;
$$;
