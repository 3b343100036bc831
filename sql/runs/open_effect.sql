-- runs/open_effect: what the effect transaction carries: the tenant, the unit's name and the token, until it ends
-- $1 tenant   text, empty for platform and system work
-- $2 unit     text
-- $3 token    text
-- returns   one row
-- caller    src/ledger.rs, first statement after begin
-- locks     none; takes no transaction id, so vacuum is not held back
select set_config('app.tenant_id', $1, true), set_config('app.system_process', $2, true), set_config('work.token', $3, true)
