-- ops/view_state: whether a view is there as its file makes it: a comment on its rule holds the hash of the file that made it
-- $1 name   text
-- $2 file   text
-- returns   same bool, hash text
-- caller    src/migrate.rs
-- locks     none
select exists (select
                 from pg_rewrite r join pg_class c on c.oid = r.ev_class
                where c.relnamespace = 'work'::regnamespace and c.relname = $1::text and c.relkind = 'v'
                  and obj_description(r.oid, 'pg_rewrite') = h.hash) as same,
       h.hash
  from (select encode(sha256(convert_to($2, 'UTF8')), 'hex') as hash) h
