-- views/queue_status: each queue: what waits and since when, what runs, and how far it was served; counts over all tenants
-- caller    observers and operators, dashboards
-- index     task_runs_unfinished_due_idx
-- locks     none
-- plan      as work.queue_status(): bounded, whatever waits
create or replace view work.queue_status with (security_barrier) as
select s.queue, s.waiting, s.oldest_waiting_s, s.delayed, s.running, s.lapsed, s.seen_until, s.paused
  from work.queue_status() s;
comment on column work.queue_status.queue is 'The queue.';
comment on column work.queue_status.waiting is 'Runs that are due and not running; 10001 means more than 10000. Among the 10001 that are due longest.';
comment on column work.queue_status.oldest_waiting_s is 'For how many seconds the first of them has been due. The number to watch.';
comment on column work.queue_status.delayed is 'Unfinished runs whose time has not come; 10001 means more than 10000.';
comment on column work.queue_status.running is 'Runs with a worker, among the 10001 that are due longest.';
comment on column work.queue_status.lapsed is 'Those of them whose lease has ended: their worker died, or cannot reach PostgreSQL.';
comment on column work.queue_status.seen_until is 'Everything due before this was offered to a worker; null where none ever served the queue.';
comment on column work.queue_status.paused is 'Whether workers leave it alone.';
