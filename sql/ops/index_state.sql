-- ops/index_state: whether an index of schema work is there, and whole
-- $1 name   text
-- returns   valid bool; no row where it is not there. One whose making was broken off is there and not valid
-- caller    src/migrate.rs
-- locks     none
select i.indisvalid as valid
  from pg_catalog.pg_index i
  join pg_catalog.pg_class c on c.oid = i.indexrelid
 where c.relnamespace = 'work'::regnamespace and c.relname = $1::text
