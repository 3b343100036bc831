-- indexes/task_runs_failed_idx: runs that failed for good, by when: what fails now, and why
-- caller    src/migrate.rs
-- locks     share update exclusive on the table, while every transaction that began before it ends; nobody who enqueues or works waits
-- note      holds failed runs alone, so that no other finish pays for it
create index concurrently task_runs_failed_idx
    on work.task_runs (finished_at)
 where status = 'failed'
