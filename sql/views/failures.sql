-- views/failures: what failed for good in the last 24 hours, by unit and failure code, and is not reopened; counts over all tenants
-- caller    observers and operators, dashboards
-- index     task_runs_failed_idx
-- locks     none
-- plan      as work.failures(): bounded, whatever failed
create or replace view work.failures with (security_barrier) as
select s.unit, s.code, s.failed_1h, s.failed_24h, s.first_failed_at, s.last_failed_at
  from work.failures() s;
comment on column work.failures.unit is 'Name of the task or subscriber.';
comment on column work.failures.code is 'The failure code: a cause. What it means stands in the list of errors.';
comment on column work.failures.failed_1h is 'Runs that failed in the last hour, among the 10000 newest failed ones.';
comment on column work.failures.failed_24h is 'Runs that failed in the last 24 hours, among the 10000 newest failed ones.';
comment on column work.failures.first_failed_at is 'When the first of them failed.';
comment on column work.failures.last_failed_at is 'When the last of them failed.';
