-- work.check_writable: refuses to enqueue where nothing can be written: in a read-only transaction, or on a standby
-- raises    ML032 READ_ONLY
-- caller    work.dispatch, work.dispatch_many, work.publish
-- note      without it PostgreSQL says 25006 and names a statement that the caller has never seen
create or replace function work.check_writable() returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not current_setting('transaction_read_only')::boolean then
    return;
  end if;
  if pg_is_in_recovery() then
    raise exception 'READ_ONLY: this server is a standby, and nothing can be enqueued on it'
      using errcode = 'ML032',
            hint = 'Connect to the primary. Where the URL names several hosts, target_session_attrs=read-write finds it.';
  end if;
  raise exception 'READ_ONLY: this transaction is read-only, and nothing can be enqueued in it'
    using errcode = 'ML032',
          hint = 'Begin it with: begin read write. If you did not ask for read-only, see default_transaction_read_only of the role and the database.';
end
$$;
