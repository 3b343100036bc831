-- testing/outbox_end: the newest row of each outbox
-- returns   tenant int8, platform int8
-- caller    src/testing/trial.rs, before the handler
-- index     outbox_messages_pkey, platform_outbox_messages_pkey
-- locks     none
select coalesce((select max(o.id) from work.outbox_messages o), 0) as tenant,
       coalesce((select max(o.id) from work.platform_outbox_messages o), 0) as platform
