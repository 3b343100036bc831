-- work.check_payloads: refuses many payloads where one of them would be refused, and says which
-- raises    ML006 PAYLOAD_INVALID, ML007 PAYLOAD_TOO_LARGE, as work.check_payload, with its place from 1
-- caller    work.dispatch_many
create or replace function work.check_payloads(p_payloads jsonb[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_place   bigint := 0;
  v_payload jsonb;
  v_message text;
  v_detail  text;
  v_hint    text;
begin
  if p_payloads is null then
    raise exception 'PAYLOAD_INVALID: the payloads are null'
      using errcode = 'ML006', hint = 'Give an array of JSON objects, such as array[''{"id": 1}'', ''{"id": 2}'']::jsonb[].';
  end if;
  foreach v_payload in array p_payloads loop
    v_place := v_place + 1;
    perform work.check_payload(v_payload);
  end loop;
exception
  when sqlstate 'ML006' or sqlstate 'ML007' then
    if v_place = 0 then
      raise;
    end if;
    get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
    v_message := format('%s; it is number %s of %s', sqlerrm, v_place, cardinality(p_payloads));
    if v_detail = '' then
      raise exception using message = v_message, errcode = sqlstate, hint = v_hint;
    end if;
    raise exception using message = v_message, errcode = sqlstate, detail = v_detail, hint = v_hint;
end
$$;
