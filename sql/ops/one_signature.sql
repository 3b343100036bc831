-- ops/one_signature: where a function was made with another signature, the old one goes; whoever could call that can call the new one
-- caller    src/migrate.rs, after each function, in the transaction that made it
-- raises    ML033 SIGNATURE_IN_USE where an object of yours was made with the old one
-- locks     none that a caller waits for; a call under way ends with the old one
-- note      two of a name would refuse short calls as not unique
do $$
declare
  old      record;
  v_role   record;
  v_detail text;
begin
  for old in
    select p.oid::regprocedure::text as signature, p.proacl, p.proowner, n.oid::regprocedure::text as successor
      from pg_proc p
      join pg_proc n on n.pronamespace = p.pronamespace and n.proname = p.proname and n.oid <> p.oid
     where p.pronamespace = 'work'::regnamespace
       -- What this transaction has written is new.
       and n.xmin = pg_current_xact_id()::xid and p.xmin <> pg_current_xact_id()::xid
  loop
    for v_role in
      select a.grantee::regrole::text as name, a.is_grantable
        from aclexplode(old.proacl) a
       where a.privilege_type = 'EXECUTE' and a.grantee <> 0 and a.grantee <> old.proowner
    loop
      execute format('grant execute on function %s to %s%s', old.successor, v_role.name, case when v_role.is_grantable then ' with grant option' else '' end);
    end loop;
    begin
      execute format('drop function %s', old.signature);
    exception when dependent_objects_still_exist then
      get stacked diagnostics v_detail = pg_exception_detail;
      raise exception 'SIGNATURE_IN_USE: % is now %, and something else was made with the old one: %', old.signature, old.successor, v_detail
        using errcode = 'ML033', hint = 'Drop that, run workers migrate, and make it anew: the same call finds the new function.';
    end;
  end loop;
end
$$;
