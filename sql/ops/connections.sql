-- ops/connections: how many connections this role may have, and the server; whether it takes writes
-- returns   role text, role_limit int4 (-1: no limit), server_limit int4, version int4 (such as 150004), read_only bool
-- caller    src/checks.rs
-- locks     none
select r.rolname::text as role, r.rolconnlimit as role_limit,
       current_setting('max_connections')::int4 - current_setting('superuser_reserved_connections')::int4 as server_limit,
       current_setting('server_version_num')::int4 as version,
       current_setting('transaction_read_only')::bool as read_only
  from pg_catalog.pg_roles r
 where r.rolname = current_user
