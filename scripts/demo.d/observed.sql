-- What was seen from outside, as temporary tables: what the client was told, and what arrived in the mail sink.
-- Runs in the session of the files that read them; the current folder holds the two lists.
create temporary table told (ending text, run_id uuid);
\copy told from 'told' with (format csv)
create temporary table mails (run_id uuid);
\copy mails from 'mails'
