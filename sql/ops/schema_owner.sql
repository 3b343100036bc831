-- ops/schema_owner: who owns what was migrated, and whether the role of this session may take its part
-- returns   owner text, role text, may bool; the names quoted; no row where nothing was migrated yet
-- caller    src/migrate.rs, before a migration
select quote_ident(pg_get_userbyid(c.relowner)) as owner, quote_ident(session_user) as role,
       pg_has_role(session_user, c.relowner, 'member') as may
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'work' and c.relname = 'schema_history'
