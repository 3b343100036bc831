-- work.nearest_units: up to three names of the catalogue that look most like this one, for hints
-- returns   text, null where nothing comes near
-- caller    work.refuse_unit
-- plan      reads the whole catalogue: hundreds of rows, only when a name was wrong
create or replace function work.nearest_units(p_name text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select string_agg(name, ', ' order by score desc, name)
    from (
      select u.name, 2.0 * count(*) filter (where t.gram = any (asked.grams)) / (count(*) + cardinality(asked.grams)) as score
        from work.units u,
             lateral (select distinct substring('  ' || u.name || ' ' from i for 3) as gram
                        from generate_series(1, length(u.name) + 1) i) t,
             (select array_agg(distinct substring('  ' || left(lower(p_name), 80) || ' ' from i for 3)) as grams
                from generate_series(1, length(left(p_name, 80)) + 1) i) asked
       where u.retired_at is null and u.kind = 'task'
       group by u.name, asked.grams
       order by score desc, u.name
       limit 3
    ) near
   where score >= 0.35;
$$;
