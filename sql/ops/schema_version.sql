-- ops/schema_version: the newest migration this database has
-- returns   version int4; null where there is none
-- caller    src/migrate.rs, at boot of the workers
select max(h.version) as version from work.schema_history h
