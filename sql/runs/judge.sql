-- runs/judge: what to do with messages in hand; reads only, the order of judgement stands here and nowhere else
-- $1 run_ids      uuid[]
-- $2 generations  int4[], of the messages
-- $3 marks        int4[], deadLetter.generation of the messages, 0 without one
-- $4 receives     int4[], how often SQS handed each out
-- $5 known        text[], units this process runs
-- $6 spare_s      float8: above 0 after an outage, where whoever holds a lapsed lease may not have had the time to give back
-- returns   ord int8 (1 is the first message), verdict text, unit text, wait_s float8 (until lease end or due time)
-- caller    src/ledger.rs
-- index     task_runs_pkey
-- locks     none; the statement that follows checks again under its lock
select m.ord,
       case
         when r.run_id is null then 'no_run'
         when r.generation > m.generation and not (r.status = 'failed' and m.mark >= r.generation) then 'stale'
         when r.status = 'failed' and m.mark >= r.generation and m.mark - 1000 <= r.generation then 'redriven'
         when r.status in ('succeeded', 'failed', 'cancelled', 'skipped') then 'done'
         when m.receives >= 6 then 'spent'
         when r.lease_expires_at > clock_timestamp() or r.status = 'running' and $6::float8 > 0 then 'held'
         when r.status = 'running' and r.failures + r.crashes >= 4 then 'condemned'
         when r.status <> 'running' and r.available_at > clock_timestamp() then 'early'
         when r.unit <> all ($5::text[]) then 'unknown'
         when r.crashes + (r.status = 'running')::int4 >= 2 then 'suspect'
         else 'ready'
       end as verdict,
       r.unit,
       -- Longer than SQS can hide is all the same; infinity, written by hand, has no difference to now.
       greatest(
         extract(epoch from least(greatest(coalesce(r.lease_expires_at, r.available_at), now.at), now.at + interval '1 day') - now.at)::float8,
         case when r.status = 'running' then $6::float8 else 0 end
       ) as wait_s
  from (select clock_timestamp() as at offset 0) now,
       unnest($1::uuid[], $2::int4[], $3::int4[], $4::int4[]) with ordinality m (run_id, generation, mark, receives, ord)
  left join work.task_runs r on r.run_id = m.run_id
 order by m.ord
