-- What the application has: tenants, and the table that the handler of sessions.record writes to.
insert into public.tenants (id) select generate_series(1, 20);

create table public.sessions_recorded (
  run_id uuid        not null,
  email  text        not null,
  at     timestamptz not null default clock_timestamp()
);
