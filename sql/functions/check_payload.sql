-- work.check_payload: refuses a payload that is not a JSON object or is too large
-- raises    ML006 PAYLOAD_INVALID, ML007 PAYLOAD_TOO_LARGE (sizes in the detail), ML036 SETTING_INVALID
-- caller    work.dispatch, work.publish, work.check_payloads
-- tune      limit in bytes of text: alter database … set work.payload_max_bytes = 1048576; at most 16 MiB, since a session may set it too
create or replace function work.check_payload(p_payload jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_setting text := coalesce(nullif(current_setting('work.payload_max_bytes', true), ''), '1048576');
  v_limit   bigint;
  v_size    bigint;
begin
  if jsonb_typeof(p_payload) is distinct from 'object' then
    raise exception 'PAYLOAD_INVALID: the payload is %, not a JSON object',
        coalesce('a JSON ' || jsonb_typeof(p_payload), 'null')
      using errcode = 'ML006', hint = 'Wrap it in an object, such as {"value": …}.';
  end if;
  if v_setting !~ '^[0-9]{1,9}$' then
    raise exception 'SETTING_INVALID: the setting work.payload_max_bytes is not a number of bytes'
      using errcode = 'ML036', hint = 'Write it without a unit, as in: alter database … set work.payload_max_bytes = 1048576.';
  end if;
  v_limit := least(v_setting::bigint, 16777216);
  v_size := octet_length(p_payload::text);
  if v_size > v_limit then
    raise exception 'PAYLOAD_TOO_LARGE: the payload is larger than the limit'
      using errcode = 'ML007',
            detail = format('%s bytes of text; the limit is %s bytes (setting work.payload_max_bytes).', v_size, v_limit),
            hint = 'Store the data in a table or in object storage and pass its key.';
  end if;
end
$$;
