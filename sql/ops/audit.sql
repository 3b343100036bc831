-- ops/audit: note what an operator is about to do by a command, or what became of it
-- $1 action  text
-- $2 target  text, a queue or all
-- $3 reason  text
-- $4 detail  text, a JSON object
-- returns   audit void
-- caller    src/dlq.rs
-- locks     none
select work.audit($1, $2, $3, $4::text::jsonb)
