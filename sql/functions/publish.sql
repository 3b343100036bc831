-- work.publish: schedules one run of each subscriber of an event, in the caller's transaction
-- returns   unit, run_id: a row a subscriber of exactly this type and version; none where there is none
-- raises    ML002 CATALOG_NOT_LOADED, ML004 RUN_CONTEXT_MISMATCH, ML005 DELAY_INVALID, ML006 PAYLOAD_INVALID, ML007 PAYLOAD_TOO_LARGE,
--           ML008 IDEMPOTENCY_CONFLICT, ML015 IDEMPOTENCY_KEY_INVALID, ML016 EVENT_INVALID, ML032 READ_ONLY; 23503 for a tenant that does not exist
-- caller    API teams, in any language; handlers in their effect transaction
-- index     units_event_idx, task_runs_pkey, outbox_messages_run_id_key
-- locks     key share on the tenant's row until the caller's commit; nothing else that another caller waits for
-- note      after your commit push a wake: LPUSH monalisa:outbox:wake 1; a lost one costs at most 5 s
create or replace function work.publish(
  event_type      text,
  payload         jsonb       default '{}',
  version         integer     default 1,
  tenant_id       bigint      default null,
  delay           interval    default null,
  run_at          timestamptz default null,
  idempotency_key text        default null,
  traceparent     text        default null
) returns table (unit text, run_id uuid)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_units   work.units[];
  v_tenant  bigint;
  v_due     timestamptz;
  v_new     uuid[];
  v_run_ids uuid[];
begin
  perform work.check_writable();
  if not exists (select from work.catalogues) then
    perform work.refuse_unit(publish.event_type);
  end if;
  if publish.event_type is null or publish.version is null then
    raise exception 'EVENT_INVALID: the event has no %', case when publish.event_type is null then 'type' else 'version' end
      using errcode = 'ML016', hint = 'Give both, such as work.publish(''invitations.created'', ''{}'', version => 1), or leave the version out for 1.';
  end if;
  perform work.check_payload(publish.payload);
  v_due := work.due_at(publish.delay, publish.run_at);
  select array_agg(u order by u.name), array_agg(work.uuid_v7() order by u.name)
    into v_units, v_new
    from work.units u
   where u.event_type = publish.event_type and u.event_version = publish.version
     and (u.retired_at is null
          -- Where the subscribers changed their context under new names, those of the old one are over.
          or u.retired_at > clock_timestamp() - interval '7 days'
             and not exists (select from work.units l
                              where l.event_type = publish.event_type and l.event_version = publish.version
                                and l.retired_at is null and l.context <> u.context));
  perform work.check_retired(u.name, u.retired_at) from unnest(v_units) u;
  -- Without a subscriber nobody says which context it is: a key then counts within the tenant that the caller named.
  if v_units is null then
    v_tenant := coalesce(publish.tenant_id, work.setting_tenant());
  else
    v_tenant := work.tenant_for(publish.event_type, (v_units[1]).context, publish.tenant_id);
  end if;
  if publish.idempotency_key is not null then
    v_run_ids := work.claim_key(v_tenant, publish.idempotency_key, coalesce(v_new, '{}'),
                                'event ' || publish.event_type || ' ' || publish.version, publish.payload);
    if v_run_ids is distinct from coalesce(v_new, '{}') then
      return query select r.unit, r.run_id from work.task_runs r where r.run_id = any (v_run_ids) order by r.unit;
      return;
    end if;
  end if;
  if v_units is null then
    raise notice 'EVENT_WITHOUT_SUBSCRIBER: nobody subscribes to % v%', publish.event_type, publish.version
      using hint = coalesce(
        'Subscribed to are: ' || (select string_agg(distinct format('%s v%s', u.event_type, u.event_version), ', ')
                                    from work.units u
                                   where u.retired_at is null
                                     and (u.event_type = publish.event_type
                                          or split_part(u.event_type, '.', 1) = split_part(publish.event_type, '.', 1))) || '.',
        'That is no error: an event may have no subscriber.');
    return;
  end if;
  perform work.enqueue(v_units, v_new, array_fill(publish.payload, array[cardinality(v_new)]), v_tenant, v_due, work.checked_traceparent(publish.traceparent));
  return query select v_units[i].name, v_new[i] from generate_subscripts(v_new, 1) i order by i;
end
$$;
