-- work.load_catalogue: takes over a service's catalogue (tasks.json): new units, changes, and what is no longer offered
-- returns   change (added, changed, restored, retired), unit
-- raises    ML009 CATALOG_INVALID
-- caller    workers migrate; API teams in their tests
-- locks     work.catalogues in share row exclusive mode: one load at a time; enqueueing goes on
create or replace function work.load_catalogue(catalogue jsonb, service text)
returns table (change text, unit text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_bad      text;
  v_incoming work.units[];
begin
  if coalesce(load_catalogue.service, '') !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$' then
    raise exception 'CATALOG_INVALID: the service name is not valid'
      using errcode = 'ML009', hint = 'Give 1 to 64 letters, digits, dots, dashes or underscores, such as the name of the crate.';
  end if;
  if jsonb_typeof(load_catalogue.catalogue) is distinct from 'object'
     or jsonb_typeof(load_catalogue.catalogue -> 'tasks') is distinct from 'array'
     or jsonb_typeof(load_catalogue.catalogue -> 'subscriptions') is distinct from 'array' then
    raise exception 'CATALOG_INVALID: it is not an object with the lists tasks and subscriptions'
      using errcode = 'ML009', hint = 'Generate it: workers tasks generate writes tasks.json.';
  end if;
  if coalesce(load_catalogue.catalogue -> 'version', '1') <> '1' then
    raise exception 'CATALOG_INVALID: its version is %, and this database knows version 1', load_catalogue.catalogue -> 'version'
      using errcode = 'ML009', hint = 'Migrate with the program that generated it: workers migrate.';
  end if;
  lock table work.catalogues in share row exclusive mode;

  begin
    select array_agg(i::work.units) into v_incoming
      from (
        select t.name, coalesce(t.service, load_catalogue.service), 'task', t.queue, coalesce(t.context, 'tenant'), coalesce(t.overlap, 'skip'),
               coalesce(t.timeout_seconds, 60), null::text, null::integer,
               t.schedule, case when t.schedule is not null then coalesce(t.timezone, 'UTC') end,
               case when t.schedule is not null then clock_timestamp() end, clock_timestamp(), null::timestamptz
          from jsonb_to_recordset(load_catalogue.catalogue -> 'tasks')
                 as t (name text, service text, queue text, context text, overlap text, timeout_seconds integer, schedule text, timezone text)
        union all
        select s.name, coalesce(s.service, load_catalogue.service), 'event', s.queue, coalesce(s.context, 'tenant'), 'skip',
               coalesce(s.timeout_seconds, 60), coalesce(s.type, ''), coalesce(s.version, 1), null, null, null, clock_timestamp(), null
          from jsonb_to_recordset(load_catalogue.catalogue -> 'subscriptions')
                 as s (name text, service text, queue text, context text, timeout_seconds integer, type text, version integer)
      ) i (name, service, kind, queue, context, overlap, timeout_seconds, event_type, event_version,
           schedule, schedule_timezone, schedule_anchor, loaded_at, retired_at);
  exception when data_exception then
    raise exception 'CATALOG_INVALID: %', sqlerrm
      using errcode = 'ML009', hint = 'Generate it: workers tasks generate writes tasks.json.';
  end;

  select service into v_bad from unnest(v_incoming) where service not in (load_catalogue.service, 'monalisa') limit 1;
  if found then
    raise exception 'CATALOG_INVALID: a unit names the service %', v_bad
      using errcode = 'ML009', hint = 'Only units that ship with monalisa name a service; leave it out of all others.';
  end if;
  select name into v_bad from unnest(v_incoming) group by name having count(*) > 1 limit 1;
  if found then
    raise exception 'CATALOG_INVALID: the unit % stands twice', v_bad
      using errcode = 'ML009', hint = 'Names are unique over tasks and subscribers; rename one of them.';
  end if;
  -- The form of the rest is checked by the table.
  select name into v_bad from unnest(v_incoming)
   where event_type !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$' or event_version < 1 or schedule !~ '^(rate|cron)\(.+\)$' limit 1;
  if found then
    raise exception 'CATALOG_INVALID: the event or the schedule of % is not valid', v_bad
      using errcode = 'ML009', hint = 'A type is segments of [a-z][a-z0-9_]* joined by dots, a version is 1 or more, a schedule is rate(...) or cron(...).';
  end if;
  select i.name || ' belongs to the service ' || u.service into v_bad
    from unnest(v_incoming) i join work.units u using (name)
   where u.service <> i.service and u.retired_at is null limit 1;
  if found then
    raise exception 'CATALOG_INVALID: the unit %', v_bad
      using errcode = 'ML009', hint = 'Names are unique over all services of a database; rename one, or load it as that service.';
  end if;
  select format('%s v%s', a.event_type, a.event_version) into v_bad
    from (select event_type, event_version, context from unnest(v_incoming) where kind = 'event'
          union select event_type, event_version, context from work.units
                 where kind = 'event' and retired_at is null and service <> load_catalogue.service
                   and name not in (select i.name from unnest(v_incoming) i)) a
   group by a.event_type, a.event_version having count(distinct a.context) > 1 limit 1;
  if found then
    raise exception 'CATALOG_INVALID: the subscribers of % have different contexts', v_bad
      using errcode = 'ML009', hint = 'All subscribers of one type and version share a context.';
  end if;

  insert into work.catalogues as c (service, hash)
  values (load_catalogue.service, encode(sha256(convert_to(load_catalogue.catalogue::text, 'UTF8')), 'hex'))
  on conflict (service) do update set hash = excluded.hash, loaded_at = clock_timestamp();
  -- Units that ship are in every program: they belong to no service of yours, and no load retires them.
  insert into work.catalogues (service, hash) values ('monalisa', '') on conflict (service) do nothing;

  begin
    return query
      with before as materialized (
        select u.* from work.units u
      ), retired as (
        update work.units u set retired_at = clock_timestamp()
         where u.service = load_catalogue.service and u.retired_at is null
           and not exists (select from unnest(v_incoming) i where i.name = u.name)
        returning u.name
      ), taken as (
        insert into work.units as u select i.* from unnest(v_incoming) i order by i.name
        on conflict (name) do update
           set service = excluded.service, kind = excluded.kind, queue = excluded.queue, context = excluded.context,
               overlap = excluded.overlap, timeout_seconds = excluded.timeout_seconds,
               event_type = excluded.event_type, event_version = excluded.event_version,
               schedule = excluded.schedule, schedule_timezone = excluded.schedule_timezone,
               schedule_anchor = case when (u.schedule, u.schedule_timezone) is not distinct from (excluded.schedule, excluded.schedule_timezone)
                                       and u.retired_at is null
                                      then u.schedule_anchor else excluded.schedule_anchor end,
               loaded_at = excluded.loaded_at, retired_at = null
        returning u.*
      )
      select case when b.name is null then 'added' when b.retired_at is not null then 'restored' else 'changed' end, t.name
        from taken t left join before b using (name)
       where b.name is null or b.retired_at is not null
          or (b.service, b.kind, b.queue, b.context, b.overlap, b.timeout_seconds, b.event_type, b.event_version, b.schedule, b.schedule_timezone)
             is distinct from
             (t.service, t.kind, t.queue, t.context, t.overlap, t.timeout_seconds, t.event_type, t.event_version, t.schedule, t.schedule_timezone)
      union all
      select 'retired', r.name from retired r
      order by 2;
  exception when check_violation or not_null_violation then
    raise exception 'CATALOG_INVALID: %', sqlerrm
      using errcode = 'ML009', hint = 'Check name, queue, context, overlap, timeout and schedule of the unit: workers tasks check names the place.';
  end;
end
$$;
