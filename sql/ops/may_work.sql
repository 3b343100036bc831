-- ops/may_work: whether this role sees the runs and may change them; one that does not would take every message for a foreign one
-- returns   role text, may bool
-- caller    src/migrate.rs, at boot of the workers
select current_user::text as role,
       pg_has_role(current_user, 'monalisa_worker', 'usage')
         or has_table_privilege('work.task_runs', 'update') and not row_security_active('work.task_runs') as may
