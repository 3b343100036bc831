-- schedules/decide: fire an occurrence, or skip it
-- $1 schedule       text
-- $2 scheduled_for  timestamptz
-- returns   decision text, run_id uuid, suppressed_by uuid (decision: fired, skipped, exists)
-- caller    src/scheduler/mod.rs
-- locks     as work.decide_occurrence
select d.decision, d.run_id, d.suppressed_by from work.decide_occurrence($1, $2) d
