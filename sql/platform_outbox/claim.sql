-- platform_outbox/claim: lock the oldest due rows of one queue for one relay pass
-- $1 queue       text
-- $2 cursor      text: available_at of the last row of the pass before, or null
-- $3 last        int8: id of that row, or null
-- $4 lookback_s  float8: look no further back than this, or null; with both null everything is looked at
-- $5 limit       int8
-- returns   id int8, run_id uuid, tenant_id int8, envelope text, attempts int4, available_at text
-- caller    src/outbox.rs
-- index     platform_outbox_messages_pending_idx (queue, available_at, id) where sent_at is null
-- locks     the claimed rows, skip locked, until the pass commits
-- plan      index scan from the lower bound on; never a sequential scan, never a sort
-- note      the lower bound keeps the cost flat while a long transaction elsewhere keeps the entries of sent rows alive
select o.id, o.run_id, null::int8 as tenant_id, o.envelope::text as envelope, o.attempts, o.available_at::text as available_at
  from work.platform_outbox_messages o
 where o.sent_at is null
   and o.queue = $1
   and (o.available_at, o.id)
       >= ((select greatest('-infinity', $2::text::timestamptz, clock_timestamp() - make_interval(secs => $4))), coalesce($3::int8, 0))
   and o.available_at <= (select clock_timestamp())
 order by o.available_at, o.id
 limit $5
   for update skip locked
