-- When everything has settled: each row is a breach of an invariant; none is the proof that they held.
-- The tables in schema public are those of setup.sql.
with generations as (
  select r.run_id, g.generation, g.generation = r.generation as last, r.status,
         count(e.id) filter (where e.event in ('succeeded', 'failed', 'cancelled')) as ends,
         max(e.id) filter (where e.event in ('succeeded', 'failed', 'cancelled')) as end_id,
         max(e.event) filter (where e.event in ('succeeded', 'failed', 'cancelled')) as end_event,
         count(e.id) filter (where e.event in ('redriven', 'retried')) as openings,
         min(e.event) filter (where e.event in ('redriven', 'retried')) as opening,
         min(e.id) filter (where e.event in ('redriven', 'retried')) as opening_id,
         min(e.id) as first_id, max(e.id) as last_id
    from work.task_runs r
   cross join lateral generate_series(1, r.generation) g (generation)
    left join work.run_events e on e.run_id = r.run_id and e.generation = g.generation
   group by r.run_id, r.status, r.generation, g.generation
), trails as (
  select r.run_id,
         count(e.id) filter (where e.event = 'started') as started,
         count(e.id) filter (where e.event in ('succeeded', 'retrying', 'interrupted', 'given_back', 'lost')
                                or e.event = 'failed' and e.detail ->> 'code' <> 'WORKER_LOST'
                                or e.event = 'cancelled' and e.detail ->> 'was' = 'running') as ended,
         count(e.id) filter (where e.event = 'succeeded') as succeeded,
         count(e.id) filter (where e.event = 'cancelled') as cancelled,
         count(e.id) filter (where e.event = 'retried') as retried,
         count(e.id) filter (where e.event = 'repaired') as repaired,
         count(e.id) filter (where e.generation = r.generation
                               and (e.event = 'retrying' or e.event = 'failed' and e.detail ->> 'code' <> 'WORKER_LOST')) as failures,
         count(e.id) filter (where e.generation = r.generation and e.event = 'lost') as crashes,
         count(e.id) filter (where e.generation = r.generation and e.event = 'interrupted') as interruptions
    from work.task_runs r
    left join work.run_events e on e.run_id = r.run_id
   group by r.run_id
), outbox as (
  select run_id, envelope, sent_at from work.outbox_messages
  union all
  select run_id, envelope, sent_at from work.platform_outbox_messages
)
select b.invariant, b.breach, b.run_id
  from (
    select 'I1', 'a committed dispatch has no run', d.run_id
      from public.dispatched d where not exists (select from work.task_runs r where r.run_id = d.run_id)
    union all
    select 'I1', 'a run is not final: ' || r.status, r.run_id
      from work.task_runs r where r.status in ('queued', 'running', 'retrying')
    union all
    select 'I1', 'a dispatch that was rolled back left something', b.run_id
      from public.rolled_back b
     where exists (select from work.task_runs r where r.run_id = b.run_id) or exists (select from outbox o where o.run_id = b.run_id)
    union all
    select 'I1', format('generation %s ended %s times', g.generation, g.ends), g.run_id
      from generations g where g.ends <> 1
    union all
    select 'I1', format('the trail ends as %s and the run is %s', g.end_event, g.status), g.run_id
      from generations g where g.last and g.end_event <> g.status
    union all
    select 'I1', 'an outbox row is still pending', o.run_id
      from outbox o where o.sent_at is null
    union all
    select 'I1', 'a failed run was sent no dead letter of its generation', r.run_id
      from work.task_runs r
      join outbox o on o.run_id = r.run_id
     where r.status = 'failed' and (o.envelope -> 'deadLetter' ->> 'generation')::int is distinct from r.generation
    union all
    select 'I2', format('%s effects of a run that is %s', count(e.run_id), r.status), r.run_id
      from work.task_runs r
      left join public.effects e on e.run_id = r.run_id
     group by r.run_id
    having count(e.run_id) <> (r.status = 'succeeded' and coalesce(r.payload ->> 'quiet', 'false') = 'false')::int
    union all
    select 'I2', format('%s children of a run that is %s', count(c.run_id), r.status), r.run_id
      from work.task_runs r
      left join work.task_runs c on c.unit = 's.child' and c.payload ->> 'parent' = r.run_id::text
     where r.unit = 's.parent'
     group by r.run_id
    having count(c.run_id) <> (r.status = 'succeeded')::int
    union all
    select 'I2', format('it succeeded %s times and is %s', t.succeeded, r.status), r.run_id
      from trails t join work.task_runs r on r.run_id = t.run_id
     where t.succeeded <> (r.status = 'succeeded')::int
    union all
    select 'I3', format('%s starts, of which the trail tells %s, and %s ends', r.starts, t.started, t.ended), r.run_id
      from trails t join work.task_runs r on r.run_id = t.run_id
     where r.starts <> t.started or t.started <> t.ended
    union all
    select 'I3', 'its counters are not those of the trail', r.run_id
      from trails t join work.task_runs r on r.run_id = t.run_id
     where (r.failures, r.crashes, r.interruptions) <> (t.failures, t.crashes, t.interruptions) or r.failures + r.crashes > 5
    union all
    select 'I3', 'a dead letter of a run that did not fail', r.run_id
      from outbox o join work.task_runs r on r.run_id = o.run_id
     where o.envelope ? 'deadLetter' and r.status <> 'failed' and (o.envelope ->> 'generation')::int >= r.generation
    union all
    select 'I4', format('something happened after the end of generation %s', g.generation), g.run_id
      from generations g where g.last_id > g.end_id
    union all
    select 'I4', format('generation %s was opened %s times', g.generation, g.openings), g.run_id
      from generations g
     where g.openings <> (g.generation > 1)::int or g.opening_id > g.first_id
    union all
    select 'I4', format('%s after it was %s', g.opening, b.end_event), g.run_id
      from generations g
      join generations b on b.run_id = g.run_id and b.generation = g.generation - 1
     where b.end_event = 'succeeded' or g.opening = 'redriven' and b.end_event <> 'failed'
    union all
    select 'I4', 'the trail tells of acts that nobody made, or not of one that was made', t.run_id
      from trails t
     where t.cancelled <> (select count(*) from work.actions a where a.target = t.run_id::text and a.action = 'cancel'
                              and a.detail ->> 'was' in ('queued', 'running', 'retrying'))
        or t.retried <> (select count(*) from work.actions a where a.target = t.run_id::text and a.action = 'retry')
    union all
    select 'I9', format('a row of %s was deleted; the run was %s', d.place, d.status), d.run_id
      from public.deleted d
     where d.place = 'task_runs' or d.pending and d.status is distinct from 'cancelled'
    union all
    select 'I11', 'repaired though no message of it was lost', t.run_id
      from trails t where t.repaired > 0 and not exists (select from public.lost l where l.run_id = t.run_id)
  ) b (invariant, breach, run_id)
 order by 1, 2, 3
