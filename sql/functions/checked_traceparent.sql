-- work.checked_traceparent: the traceparent where it has the W3C form, else null with a warning
-- returns   text
-- caller    work.dispatch, work.publish
create or replace function work.checked_traceparent(p_traceparent text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_traceparent is null
     or p_traceparent ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then
    return p_traceparent;
  end if;
  raise warning 'TRACEPARENT_DROPPED: the traceparent is not of the W3C form and was dropped'
    using hint = 'It looks like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.';
  return null;
end
$$;
