-- guards/row_level_security: rows of tenants; the worker and the owner see all, anybody else the tenant of the setting app.tenant_id
-- locks     the three tables in access exclusive mode, only when the policies do not exist yet
do $$
declare
  v_table text;
begin
  foreach v_table in array array['task_runs', 'run_events', 'outbox_messages'] loop
    if not exists (select from pg_policies where schemaname = 'work' and tablename = v_table and policyname = 'runtime') then
      execute format('alter table work.%I enable row level security', v_table);
      execute format('create policy runtime on work.%I to monalisa_worker, monalisa_owner using (true) with check (true)', v_table);
      execute format('create policy tenant on work.%I for select to public using (tenant_id is not distinct from work.setting_tenant())', v_table);
    end if;
  end loop;
end
$$;
