-- ops/queue_health: how far workers have served each queue, and the oldest run that could have been started
-- returns   queue text, seen_s float8 (null: never), waiting_s float8 (null: nothing waits)
-- caller    src/doctor.rs
-- index     task_runs_unfinished_due_idx
-- locks     none
-- plan      one index probe a queue
select q.queue,
       case when q.seen_until > '-infinity' then extract(epoch from clock_timestamp() - q.seen_until)::float8 end as seen_s,
       (select extract(epoch from clock_timestamp() - r.available_at)::float8
          from work.task_runs r
         where r.queue = q.queue
           and r.status in ('queued', 'running', 'retrying')
           and r.status <> 'running'
           and r.available_at between '-infinity' and clock_timestamp()
         order by r.available_at
         limit 1) as waiting_s
  from work.queue_seen q
