-- catalogue/matches: whether a service's catalogue in the database is this one
-- $1 catalogue  text, JSON
-- returns   loaded bool, same bool: any catalogue at all, and this one
-- caller    src/catalogue.rs
-- locks     none
select s.loaded, s.same from work.catalogue_state($1::text::jsonb) s
