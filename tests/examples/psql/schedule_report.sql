-- Schedules work from psql, in a transaction of your own.
--
--   psql "$DATABASE_URL" -v report_id=7 -f schedule_report.sql
\set ON_ERROR_STOP on
\set QUIET on

-- The report and its work: both or neither.
begin;
select set_config('app.tenant_id', '1', true) as tenant \gset
insert into reports (id, format) values (:report_id, 'pdf') on conflict (id) do nothing;
select work.dispatch('reports.export', jsonb_build_object('report_id', :report_id, 'format', 'pdf'),
                     idempotency_key => 'report-' || :report_id) as run_id \gset
commit;
\echo scheduled :run_id

-- After the commit, wake the relay. It may fail: without it the work waits for the next sweep.
\! [ -z "$MONALISA_VALKEY_URL" ] || printf 'LPUSH monalisa:outbox:wake 1\nLTRIM monalisa:outbox:wake 0 15\n' | timeout 1 "$(command -v redis-cli || command -v valkey-cli)" -u "$MONALISA_VALKEY_URL" >/dev/null 2>&1

-- The same key and payload: the first run, and no second one.
begin;
select set_config('app.tenant_id', '1', true) as tenant \gset
select work.dispatch('reports.export', jsonb_build_object('report_id', :report_id, 'format', 'pdf'),
                     idempotency_key => 'report-' || :report_id) as run_id \gset
commit;
\echo again :run_id

-- Another payload under the same key is refused. The savepoint keeps the transaction.
begin;
select set_config('app.tenant_id', '1', true) as tenant \gset
savepoint before_dispatch;
\set ON_ERROR_STOP off
select work.dispatch('reports.export', jsonb_build_object('report_id', :report_id, 'format', 'csv'),
                     idempotency_key => 'report-' || :report_id) as run_id \gset
\set refused :SQLSTATE
\set ON_ERROR_STOP on
rollback to before_dispatch;
commit;
\echo refused :refused

-- A rollback leaves nothing: no report, no run, no message.
begin;
select set_config('app.tenant_id', '1', true) as tenant \gset
insert into reports (id, format) values (:report_id + 1, 'pdf');
select work.dispatch('reports.export', jsonb_build_object('report_id', :report_id + 1, 'format', 'pdf'),
                     idempotency_key => 'report-' || (:report_id + 1)) as run_id \gset
rollback;
\echo rolled_back :run_id
