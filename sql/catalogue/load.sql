-- catalogue/load: take over a service's catalogue
-- $1 catalogue  text, JSON as workers tasks generate writes it
-- $2 service    text
-- returns   change text, unit text
-- caller    src/migrate.rs
-- locks     work.catalogues in share row exclusive mode until the commit
select l.change, l.unit from work.load_catalogue($1::text::jsonb, $2) l
