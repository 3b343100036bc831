-- work.transitions: the allowed changes of a run's status; the only place that lists them
-- returns   name, from_status (null: the run is new), to_status
-- caller    the trigger work.refuse_transition, the README's picture, the tests
-- note      an update that leaves the status alone (a take-over of a lapsed lease, a heartbeat) is no transition
create or replace function work.transitions() returns table (name text, from_status text, to_status text)
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
  values
    ('enqueue',     null,       'queued'),
    ('suppress',    null,       'skipped'),
    ('start',       'queued',   'running'),
    ('start',       'retrying', 'running'),
    ('take over',   'running',  'running'),
    ('succeed',     'running',  'succeeded'),
    ('retry later', 'running',  'retrying'),
    ('fail',        'running',  'failed'),
    ('fail',        'queued',   'failed'),
    ('fail',        'retrying', 'failed'),
    ('give back',   'running',  'queued'),
    ('give back',   'retrying', 'queued'),
    ('cancel',      'queued',   'cancelled'),
    ('cancel',      'retrying', 'cancelled'),
    ('cancel',      'running',  'cancelled'),
    ('reopen',      'failed',   'queued'),
    ('reopen',      'cancelled','queued');
$$;
