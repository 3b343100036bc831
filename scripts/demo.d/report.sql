-- Lines of the report: section | label | number | note
select 'Runs by state', r.status, count(*), string_agg(distinct r.unit, ', ' order by r.unit)
  from work.task_runs r group by r.status order by r.status;

select 'The killed worker', 'runs in its hands, taken over', count(distinct run_id), 'each started anew once its message was visible again'
  from work.run_events where event = 'lost';

select 'Mails', 'different messages', count(distinct run_id), 'told apart by Message-ID, which is made from the run id' from mails;
select 'Mails', 'second copies', count(*) - count(distinct run_id),
       case when count(*) = count(distinct run_id) then 'a worker killed between sending and committing would cause some'
            else 'sent, then killed before the commit: mail is outside the transaction' end
  from mails;

select 'Seconds from due to finished, in a burst of ' || to_char(count(*), 'FM999,999') || ' runs', s.label,
       to_char(percentile_cont(s.at) within group (order by extract(epoch from r.finished_at - r.created_at)), 'FM990.00'), s.note
  from work.task_runs r,
       (values (0.5, 'p50', 'the wait in line is most of it'), (0.95, 'p95', ''),
               (0.99, 'p99', ''), (1, 'longest', 'runs of the killed worker wait 10 s for their messages')) s (at, label, note)
 where r.available_at <= r.created_at and r.kind = 'event'
 group by s.at, s.label, s.note order by s.at;
