-- ops/roles: the five group roles, made where they are missing, never altered where they exist
-- caller    workers migrate; a DBA by hand, where the migrating role may not create roles
-- locks     none on tables
do $$
declare
  v_role text;
begin
  foreach v_role in array array['monalisa_owner', 'monalisa_worker', 'monalisa_producer', 'monalisa_observer', 'monalisa_operator'] loop
    if not exists (select from pg_roles where rolname = v_role) then
      begin
        execute format('create role %I nologin', v_role);
      exception when duplicate_object or unique_violation then
        null; -- another database of this server made it at the same moment
      end;
    end if;
  end loop;
end
$$;
