-- catalogue/strangers: units on a program's queues that it does not have, so that it would set their runs back
-- $1 queues  text[]
-- $2 units   text[]: those it has
-- returns   queue text, units text[]
-- caller    src/checks.rs
-- locks     none
-- note      at most ten units a queue
select u.queue, (array_agg(u.name || ' (' || u.service || ')' order by u.name))[:10] as units
  from work.units u
 where u.retired_at is null and u.queue = any ($1) and u.name <> all ($2)
 group by u.queue
 order by u.queue
