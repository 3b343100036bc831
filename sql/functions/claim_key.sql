-- work.claim_key: takes an idempotency key for these new runs, or finds the runs of its first call
-- $1 tenant, $2 key, $3 ids for new runs, $4 what the key stands for (unit or event), $5 payload
-- returns   the run ids that count: $3 where the key is new or has expired, else those of the first call
-- raises    ML008 IDEMPOTENCY_CONFLICT, ML015 IDEMPOTENCY_KEY_INVALID; 40001 in REPEATABLE READ beside a concurrent holder
-- caller    work.dispatch, work.publish, before they write a run
-- index     idempotency_keys_key
-- locks     the key's row until the caller's commit: a second caller waits, and takes the key over if the first rolls back
create or replace function work.claim_key(
  p_tenant_id bigint,
  p_key       text,
  p_run_ids   uuid[],
  p_request   text,
  p_payload   jsonb
) returns uuid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_hash  bytea := sha256(convert_to(p_request || E'\n' || p_payload::text, 'UTF8'));
  v_found work.idempotency_keys;
begin
  if length(p_key) not between 1 and 200 then
    raise exception 'IDEMPOTENCY_KEY_INVALID: the idempotency key has % characters', length(p_key)
      using errcode = 'ML015', hint = 'Give 1 to 200 characters, such as order-1234, or leave the key out.';
  end if;
  insert into work.idempotency_keys as k (tenant_id, key, run_ids, request_hash, expires_at)
  values (p_tenant_id, p_key, p_run_ids, v_hash, clock_timestamp() + interval '24 hours')
  on conflict on constraint idempotency_keys_key do update
     set (run_ids, request_hash, created_at, expires_at) = (
           select case when lapsed then excluded.run_ids else k.run_ids end,
                  case when lapsed then excluded.request_hash else k.request_hash end,
                  case when lapsed then excluded.created_at else k.created_at end,
                  case when lapsed then excluded.expires_at else k.expires_at end
             from (select k.expires_at <= clock_timestamp()
                          and not exists (select from work.task_runs r
                                           where r.run_id = any (k.run_ids) and r.status in ('queued', 'running', 'retrying'))
                          as lapsed) state)
  returning k.* into v_found;
  if v_found.request_hash <> v_hash then
    raise exception 'IDEMPOTENCY_CONFLICT: the key was used before with another request'
      using errcode = 'ML008',
            detail = format('Runs of the first call: %s.', array_to_string(v_found.run_ids, ', ')),
            hint = 'Use a new key for new work; under the same key send the same unit and payload.';
  end if;
  return v_found.run_ids;
end
$$;
