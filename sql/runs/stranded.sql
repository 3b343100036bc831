-- runs/stranded: examine some unfinished runs of a queue, newest first, and lock those that it was served past: their message is lost
-- $1 queue     text
-- $2 bound_s   float8: so far past, doubled at each repair of the run
-- $3 cursor    text: available_at where the look before ended, or null
-- $4 last      uuid: the run it ended with, or null where it had come to the end of its window
-- $5 window_s  float8: look no further back than so long, or null: to the oldest
-- $6 limit     int8, runs to examine
-- returns   run_id uuid, available_at text, stranded bool; where fewer than $6 were there, a last row without a run: the window's end
-- caller    src/ledger.rs, before runs/repair in the same transaction
-- index     task_runs_unfinished_due_idx, task_runs_pkey, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the stranded run rows in the order of run_id, skip locked
-- plan      the cost is that of $6 runs and of the dead entries in the window, however many are unfinished
with served as materialized (
  select s.until, coalesce(least($3::text::timestamptz, s.until - make_interval(secs => $2)) - make_interval(secs => $5), '-infinity') as back_to
    from (select least(q.seen_until, clock_timestamp()) as until from work.queue_seen q where q.queue = $1) s
), look as materialized (
  select r.run_id, r.available_at
    from work.task_runs r
   where r.queue = $1
     and r.status in ('queued', 'running', 'retrying')
     and r.available_at < (select s.until - make_interval(secs => $2) from served s)
     and r.available_at >= (select s.back_to from served s)
     and (r.available_at, r.run_id)
         < (coalesce($3::text::timestamptz, 'infinity'), coalesce($4::uuid, '00000000-0000-0000-0000-000000000000'))
   order by r.available_at desc, r.run_id desc
   limit $6
), stranded as materialized (
  -- Never one with a live lease, with a pending outbox row, or with one sent after what was served.
  select r.run_id
    from work.task_runs r
   where r.run_id = any (array (select l.run_id from look l))
     and r.status in ('queued', 'running', 'retrying')
     and coalesce(r.lease_expires_at, r.available_at)
         < (select s.until - make_interval(secs => $2 * (1 << least(r.repairs, 10))) from served s)
     -- One probe a run; written as a join it would read the whole table in a generic plan.
     and coalesce((select o.sent_at is not null and o.sent_at < s.until - make_interval(secs => $2 * (1 << least(r.repairs, 10)))
                     from work.outbox_messages o, served s where o.run_id = r.run_id), true)
     and coalesce((select o.sent_at is not null and o.sent_at < s.until - make_interval(secs => $2 * (1 << least(r.repairs, 10)))
                     from work.platform_outbox_messages o, served s where o.run_id = r.run_id), true)
   order by r.run_id
     for no key update of r skip locked
)
(select l.run_id, l.available_at::text as available_at, s.run_id is not null as stranded
   from look l
   left join stranded s on s.run_id = l.run_id
  order by l.available_at desc, l.run_id desc)
union all
select null, s.back_to::text, false
  from served s
 where (select count(*) from look) < $6
