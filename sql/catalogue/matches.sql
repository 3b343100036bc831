-- catalogue/matches: whether a service's catalogue in the database is this one
-- $1 catalogue  text, JSON
-- returns   loaded bool (any catalogue at all), same bool
-- caller    src/catalogue.rs
-- plan      reads work.catalogues, a row a service
select count(*) > 0 as loaded,
       count(*) filter (where c.hash = encode(sha256(convert_to($1::text::jsonb::text, 'UTF8')), 'hex')) > 0 as same
  from work.catalogues c
