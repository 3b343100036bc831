-- One transaction of the application: a session of each of the 20 tenants starts, and the event is published along with it.
-- :ending   commit or rollback
-- :label    local part of the mail addresses
-- :domain   their domain, of this demo alone
-- :delay    seconds
-- prints    ending and run id of everything scheduled, as the client saw it
begin;
select :'ending', p.run_id
  from generate_series(1, 20) as tenant,
       work.publish(
         'identity.session_started',
         jsonb_build_object('email', format('%s-tenant-%s@%s', :'label', tenant, :'domain'), 'occurred_at', now()),
         tenant_id => tenant, delay => make_interval(secs => :delay)) as p;
:ending;
