-- work.uuid_v7: a version-7 UUID from the database clock, so that keys of new runs lie side by side in the index
-- returns   uuid
-- caller    work.dispatch, work.dispatch_many, work.publish, work.decide_occurrence
-- locks     none
-- tune      PostgreSQL 18 has uuidv7(); this one serves 15 to 17 too
create or replace function work.uuid_v7() returns uuid
language sql volatile parallel safe
set search_path = pg_catalog, pg_temp
as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
              placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
              from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid;
$$;
