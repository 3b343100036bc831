-- The promises: label | how many break it. Every number must be 0.
select 'committed runs that did not succeed', count(*)
  from told t left join work.task_runs r using (run_id) where t.ending = 'commit' and r.status is distinct from 'succeeded';
select 'runs that nobody committed', count(*)
  from work.task_runs r where not exists (select from told t where t.run_id = r.run_id and t.ending = 'commit');
select 'runs without exactly one success in the trail', count(*)
  from (select from work.task_runs r left join work.run_events e on e.run_id = r.run_id and e.event = 'succeeded'
         group by r.run_id having count(e.id) <> 1) x;
select 'runs without exactly one effect', count(*)
  from (select from work.task_runs r left join public.sessions_recorded s using (run_id)
         where r.unit = 'sessions.record' group by r.run_id having count(s.run_id) <> 1) x;
select 'effects without a run', count(*)
  from public.sessions_recorded s where not exists (select from work.task_runs r where r.run_id = s.run_id and r.unit = 'sessions.record');
select 'rows left in the outbox', count(*)
  from (select sent_at from work.outbox_messages union all select sent_at from work.platform_outbox_messages) o where o.sent_at is null;
select 'traces of what was rolled back', count(*)
  from told t
 where t.ending = 'rollback'
   and (exists (select from work.task_runs x where x.run_id = t.run_id)
        or exists (select from work.outbox_messages x where x.run_id = t.run_id)
        or exists (select from work.run_events x where x.run_id = t.run_id) or exists (select from mails x where x.run_id = t.run_id)
        or exists (select from public.sessions_recorded x where x.run_id = t.run_id));
select 'mails that are missing or nobody asked for', count(*)
  from (select r.run_id from work.task_runs r where r.unit = 'identity.login_notification_email') r
  full join (select distinct run_id from mails) m using (run_id) where r.run_id is null or m.run_id is null;
select 'second copies of mails of runs that were not taken over', count(*)
  from (select run_id from mails group by run_id having count(*) > 1) m
 where not exists (select from work.run_events e where e.run_id = m.run_id and e.event = 'lost');
