-- guards/schema_history_comments: says what the table of the migration tool is, which it makes itself and without comments
-- caller    workers migrate
-- locks     work.schema_history in share update exclusive mode until the commit; reading goes on
comment on table  work.schema_history is 'Migrations that were applied, kept by the migration tool.';
comment on column work.schema_history.version is 'Number of the migration.';
comment on column work.schema_history.name is 'Name of the migration''s file.';
comment on column work.schema_history.applied_on is 'When it was applied, by the clock of the process.';
comment on column work.schema_history.checksum is 'Of the file as applied.';
