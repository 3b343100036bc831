-- ops/clock: what time it is; the only clock that due times, leases and ages are judged by
-- returns   now timestamptz
-- caller    src/dlq.rs, src/doctor.rs
-- locks     none
select clock_timestamp() as now
