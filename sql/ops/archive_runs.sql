-- ops/archive_runs: moves runs that finished long ago, and their trail, out of the ledger into schema work_archive
-- caller    a DBA, beside the work: psql -v days=90 -f sql/ops/archive_runs.sql "$DATABASE_URL", as the owner of the tables or a superuser
-- raises    ML034 ARCHIVE_REFUSED
-- index     task_runs_pkey, task_runs_origin_key, run_events_run_id_idx, outbox_messages_run_id_key, platform_outbox_messages_run_id_key
-- locks     the runs of a batch, skip locked, until its commit; nobody who enqueues or works waits
-- plan      walks task_runs by its key up to the ids of that time; each batch is a transaction of its own, so it may be killed and repeated
-- note      left alone: unfinished runs, runs with a pending outbox row, the last run of each schedule, keys of idempotency, outbox rows
-- note      the trail lets an event go only where the archive holds the same one (work.refuse_change)
-- note      ids of work.dispatch tell their time; others are archived only where they happen to lie below the ids of that time
-- tune      days: finished longer ago than this (90; at least 15, since dead letters live 14); batch: runs examined at a time (500)
-- tune      pause: seconds between batches (0.1); minutes: after this long it stops, and the next call goes on (60)
\set ON_ERROR_STOP on
\if :{?days}
\else
  \set days 90
\endif
\if :{?batch}
\else
  \set batch 500
\endif
\if :{?pause}
\else
  \set pause 0.1
\endif
\if :{?minutes}
\else
  \set minutes 60
\endif
select set_config('work.archive_days', :'days', false), set_config('work.archive_batch', :'batch', false),
       set_config('work.archive_pause', :'pause', false), set_config('work.archive_minutes', :'minutes', false) \g /dev/null
-- Whatever defaults the role has. Nobody's function or operator in another schema is taken for one of PostgreSQL's.
set search_path = pg_catalog, pg_temp;
set statement_timeout = 0;
set default_transaction_isolation = 'read committed';

-- The archive, where it is missing, and columns that the ledger has got since.
do $archive$
declare
  v_owner  name := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = 'work.run_events'::regclass);
  v_other  name;
  v_table  text;
  v_key    text;
  v_column record;
begin
  if current_setting('work.archive_days')::int < 15 then
    raise exception 'ARCHIVE_REFUSED: % days are too few', current_setting('work.archive_days')
      using errcode = 'ML034', hint = 'Give at least 15 days: a dead letter lives 14, and can be redriven only while the ledger has its run.';
  end if;
  if not pg_has_role(current_user, v_owner, 'usage') then
    raise exception 'ARCHIVE_REFUSED: % is not the owner of the ledger', current_user
      using errcode = 'ML034', hint = format('Run it as %s, which migrates, or as a superuser.', v_owner);
  end if;
  -- Of several at once the first makes it.
  perform pg_advisory_xact_lock(hashtext('work_archive'));
  v_other := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'work_archive');
  if v_other <> v_owner then
    raise exception 'ARCHIVE_REFUSED: schema work_archive belongs to %', v_other
      using errcode = 'ML034', hint = format('The archive belongs to the owner of the ledger: alter schema work_archive owner to %I.', v_owner);
  end if;
  if v_other is null then
    execute format('create schema work_archive authorization %I', v_owner);
    comment on schema work_archive is 'Runs and their trail that sql/ops/archive_runs.sql moved out of schema work.';
  end if;
  foreach v_table in array array['task_runs', 'run_events'] loop
    v_key := case v_table when 'task_runs' then 'run_id' else 'id' end;
    if to_regclass(format('work_archive.%I', v_table)) is null then
      execute format('create table work_archive.%I (like work.%1$I including comments, archived_at timestamptz not null default clock_timestamp(),
                      constraint %I primary key (%I)) with (autovacuum_vacuum_insert_scale_factor = 0.05)', v_table, v_table || '_pkey', v_key);
      execute format('comment on column work_archive.%I.archived_at is ''When it was moved here.''', v_table);
      execute format('comment on table work_archive.%I is ''What was archived of work.%1$I.''', v_table);
      execute format('alter table work_archive.%I owner to %I', v_table, v_owner);
    end if;
    for v_column in
      select a.attname, format_type(a.atttypid, a.atttypmod) as kind
        from pg_attribute a
       where a.attrelid = format('work.%I', v_table)::regclass and a.attnum > 0 and not a.attisdropped
         and not exists (select from pg_attribute h
                          where h.attrelid = format('work_archive.%I', v_table)::regclass and h.attname = a.attname and not h.attisdropped)
    loop
      execute format('alter table work_archive.%I add column %I %s', v_table, v_column.attname, v_column.kind);
    end loop;
  end loop;
  if to_regclass('work_archive.run_events_run_id_idx') is null then
    create index run_events_run_id_idx on work_archive.run_events (run_id, id);
  end if;
end
$archive$;

do $archive$
declare
  v_days     int         := current_setting('work.archive_days')::int;
  v_batch    int         := current_setting('work.archive_batch')::int;
  v_cutoff   timestamptz := clock_timestamp() - make_interval(hours => 24 * v_days);
  v_end      timestamptz := clock_timestamp() + make_interval(mins => current_setting('work.archive_minutes')::int);
  -- No version-7 id of an earlier millisecond is above it.
  v_below    uuid        := (lpad(to_hex((extract(epoch from v_cutoff) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
  v_after    uuid        := '00000000-0000-0000-0000-000000000000';
  v_examined uuid[];
  v_old      uuid[];
  v_copy     text;
  v_copies   text[];
  v_copied   bigint;
  v_deleted  bigint;
  v_runs     bigint := 0;
  v_events   bigint := 0;
  v_done     boolean := false;
  v_told     timestamptz := clock_timestamp();
begin
  select array_agg(format('insert into work_archive.%I (%s) select %2$s from work.%1$I where run_id = any ($1)', t.name, c.columns) order by t.place)
    into v_copies
    from unnest(array['task_runs', 'run_events']) with ordinality t (name, place),
         lateral (select string_agg(quote_ident(a.attname), ', ' order by a.attnum) as columns
                    from pg_attribute a
                   where a.attrelid = format('work.%I', t.name)::regclass and a.attnum > 0 and not a.attisdropped) c;
  perform work.audit('archive runs', 'all', format('finished more than %s days ago', v_days), null);
  commit;
  loop
    select array_agg(n.run_id order by n.run_id)
      into v_examined
      from (select r.run_id
              from work.task_runs r
             where r.run_id > v_after and r.run_id < v_below
             order by r.run_id
             limit v_batch) n;
    v_done := v_examined is null;
    exit when v_done or clock_timestamp() > v_end;
    v_after := v_examined[cardinality(v_examined)];
    with old as materialized (
      select r.run_id
        from work.task_runs r
       where r.run_id = any (v_examined)
         and r.status in ('succeeded', 'failed', 'cancelled', 'skipped')
         and r.finished_at < v_cutoff
         and coalesce((select o.sent_at is not null from work.outbox_messages o where o.run_id = r.run_id), true)
         and coalesce((select o.sent_at is not null from work.platform_outbox_messages o where o.run_id = r.run_id), true)
         and (r.schedule is null
              or r.scheduled_for < (select l.scheduled_for from work.task_runs l
                                     where l.schedule = r.schedule order by l.scheduled_for desc limit 1))
       order by r.run_id
         for update of r skip locked
    )
    select array_agg(old.run_id) into v_old from old;
    if v_old is not null then
      foreach v_copy in array v_copies loop
        execute v_copy using v_old;
        get diagnostics v_copied = row_count;
      end loop;
      delete from work.run_events e where e.run_id = any (v_old);
      get diagnostics v_deleted = row_count;
      if v_copied <> v_deleted then
        raise exception 'ARCHIVE_REFUSED: % events were copied and % would be deleted', v_copied, v_deleted
          using errcode = 'ML034', hint = 'Nothing of this batch was moved. Somebody writes events of finished runs: find out who.';
      end if;
      delete from work.task_runs r where r.run_id = any (v_old);
      v_runs := v_runs + cardinality(v_old);
      v_events := v_events + v_deleted;
    end if;
    commit;
    if v_told < clock_timestamp() - interval '5 seconds' then
      raise notice '% runs and % events moved so far', v_runs, v_events;
      v_told := clock_timestamp();
    end if;
    perform pg_sleep(current_setting('work.archive_pause')::float8);
  end loop;
  perform work.audit('archive runs ended', 'all', format('finished more than %s days ago', v_days),
                     jsonb_build_object('runs', v_runs, 'events', v_events, 'done', v_done));
  raise notice '% runs and % events moved; %', v_runs, v_events, case when v_done then 'nothing is left' else 'the time is up: call it again' end;
end
$archive$;
