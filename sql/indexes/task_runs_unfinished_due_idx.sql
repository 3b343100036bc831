-- indexes/task_runs_unfinished_due_idx: what is unfinished, in the order of its due time: repair, views of operators
-- caller    src/migrate.rs
-- locks     share update exclusive on the table, while every transaction that began before it ends; nobody who enqueues or works waits
-- note      with run_id, since any number may be due at one time; replaces task_runs_unfinished_idx
create index concurrently task_runs_unfinished_due_idx
    on work.task_runs (queue, available_at, run_id)
 where status in ('queued', 'running', 'retrying')
