create table reports (
  id          bigint primary key,
  finished_at timestamptz
);

create table sessions_recorded (
  run_id uuid primary key,
  email  text not null
);
