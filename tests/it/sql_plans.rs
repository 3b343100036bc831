//! Plans: every statement is run against full tables, generically planned as a prepared statement is in the end, and PostgreSQL's
//! auto_explain tells which plans were used, inside functions too.

use std::collections::BTreeSet;

use monalisa::sql::{self, ALL, Statement};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::{Client, error::DbError};

use crate::{
    sql_files::header_line,
    support::{World, connect, listening},
};

/// Tables that grow; the others hold some rows for ever, and a scan of them is right.
const LARGE: [&str; 5] = ["outbox_messages", "platform_outbox_messages", "task_runs", "run_events", "idempotency_keys"];

/// A week of traffic with some of it pending, running and lapsed.
const FILL: &str = "
    insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, token, lease_expires_at, started_at, finished_at, available_at)
    select gen_random_uuid(), case when i % 4 > 0 then i % 20 + 1 end, 't.ok', 'task', (array['critical','default','bulk','maintenance'])[i % 4 + 1],
           case when i % 4 > 0 then 'tenant' else 'platform' end, '{}', s.status,
           case s.status when 'running' then gen_random_uuid() end,
           case s.status when 'running' then now() + (i % 600 - 300) * interval '1 second' end,
           case s.status when 'running' then now() end,
           case when s.status in ('succeeded', 'failed') then now() end, now() - interval '9 days' + i * interval '30 seconds'
      from generate_series(1, 25000) i,
           lateral (select case when i <= 20000 then 'succeeded' else (array['queued','running','retrying','failed'])[i / 4 % 4 + 1] end as status) s;
    insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
    select tenant_id, run_id, queue, '{}', available_at, case when status <> 'queued' then available_at end
      from work.task_runs where tenant_id is not null order by available_at;
    insert into work.platform_outbox_messages (run_id, queue, envelope, available_at, sent_at)
    select gen_random_uuid(), queue, '{}', available_at, case when status <> 'queued' then available_at end
      from work.task_runs order by available_at;
    insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
    select tenant_id, run_id::text, array[run_id], '', available_at + interval '24 hours' from work.task_runs;
    insert into work.run_events (run_id, tenant_id, event, attempt, generation)
    select run_id, tenant_id, 'started', 1, 1 from work.task_runs;
    update work.queue_seen set seen_until = now();
    analyze work.task_runs, work.outbox_messages, work.platform_outbox_messages, work.idempotency_keys, work.run_events;
";

async fn full_world() -> World {
    let world = World::without_queues().await;
    world.db.batch_execute("set session_replication_role = replica").await.unwrap();
    world.db.batch_execute(FILL).await.unwrap();
    world.db.batch_execute("set session_replication_role = origin").await.unwrap();
    world
}

/// A session whose plans come as messages.
async fn explained(world: &World) -> (Client, UnboundedReceiver<DbError>) {
    let (client, plans) = listening(&world.url(None)).await;
    client
        .batch_execute(
            "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
             set auto_explain.log_format = json; set auto_explain.log_level = notice;
             set plan_cache_mode = force_generic_plan",
        )
        .await
        .unwrap();
    (client, plans)
}

/// The nodes of every plan that was used since the last call.
fn nodes(plans: &mut UnboundedReceiver<DbError>) -> Vec<Value> {
    fn walk(node: &Value, into: &mut Vec<Value>) {
        into.push(node.clone());
        for child in node["Plans"].as_array().into_iter().flatten() {
            walk(child, into);
        }
    }
    let mut nodes = Vec::new();
    while let Ok(message) = plans.try_recv() {
        let Some((_, json)) = message.message().split_once("plan:") else { continue };
        let plan: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
        walk(&plan["Plan"], &mut nodes);
    }
    nodes
}

/// Runs it as a prepared statement, generically planned, and takes back what it did.
async fn plan(client: &Client, plans: &mut UnboundedReceiver<DbError>, statement: Statement, parameters: &str) -> Vec<Value> {
    client.batch_execute(&format!("begin; prepare s as {}", statement.text)).await.unwrap();
    let _ = nodes(plans);
    let execute = if parameters.is_empty() { "execute s".to_owned() } else { format!("execute s ({parameters})") };
    client.batch_execute(&execute).await.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name));
    let nodes = nodes(plans);
    client.batch_execute("rollback; deallocate s").await.unwrap();
    assert!(!nodes.is_empty(), "{}: no plan was told", statement.name);
    nodes
}

/// Plausible parameters of each statement, given runs of each kind.
async fn parameters(world: &World, statement: Statement) -> String {
    let list = async |status: &str| -> String {
        let sql = format!(
            "select string_agg(run_id::text, ',') from (select run_id from work.task_runs where {status} order by available_at limit 5) r"
        );
        world.one(&sql, &[]).await.get(0)
    };
    let queued = list("status = 'queued' and tenant_id is not null").await;
    let running = list("status = 'running' and lease_expires_at > now() + interval '1 minute'").await;
    let held = world
        .one("select run_id::text, token::text from work.task_runs where status = 'running' and lease_expires_at > now() + interval '1 minute' limit 1", &[])
        .await;
    let (run, token): (String, String) = (held.get(0), held.get(1));
    let tokens = [token.as_str(); 5].join(",");
    let catalogue = world.command("test-workers", &["tasks", "generate", "-"]).stdout;
    let catalogue = String::from_utf8(catalogue).unwrap().replace('\'', "''");
    match statement.name {
        "enqueue/dispatch" => "'t.ok', '{}', 1, 5, null, 'a key', null".to_owned(),
        "enqueue/dispatch_many" => "'t.ok', '{\"{}\",\"{}\"}', 1, 5, null".to_owned(),
        "enqueue/publish" => "'test.happened', '{}', 1, 1, null, null, 'a key', null".to_owned(),
        "outbox/claim" | "platform_outbox/claim" => "'default', null, null, null, 500".to_owned(),
        "outbox/mark_sent" | "platform_outbox/mark_sent" => "'{17001,17002,17003}'".to_owned(),
        "outbox/mark_failed" | "platform_outbox/mark_failed" => "'{17001,17002}', '{1,2}', '{1,0}'".to_owned(),
        "outbox/due" | "platform_outbox/due" => {
            "'{critical,default,bulk}', '{null,2026-01-01 00:00:00+00,null}', '{null,7,null}', '{null,null,10}'".to_owned()
        }
        "outbox/purge" | "platform_outbox/purge" | "idempotency/purge" => "'2026-01-01 00:00:00+00', 1000".to_owned(),
        "runs/judge" => format!("'{{{queued}}}', '{{1,1,1,1,1}}', '{{0,0,0,0,0}}', '{{1,1,1,1,1}}', '{{t.ok}}', 0"),
        "runs/start" => format!("'{{{queued}}}', '{{1,1,1,1,1}}', '{{{tokens}}}', '{{50,50,50,50,50}}', false, 'w', 'on'"),
        "runs/extend" => format!("'{{{running}}}', '{{{tokens}}}', '{{50,50,50,50,50}}'"),
        "runs/open_effect" => format!("'1', 't.ok', '{token}'"),
        "runs/progress" => format!("'{run}', '{token}', 50"),
        "runs/succeed_alone" => format!("'{run}', '{token}', null"),
        "runs/fail" => format!("'{run}', '{token}', 'BROKEN', 'text', false, 5"),
        "runs/give_back" => format!("'{{{running}}}', '{{{tokens}}}', 'a reason', 0, false"),
        "runs/defer" => format!("'{}', 'w'", &queued[..36]),
        "runs/condemn" => format!("'{run}'"),
        "runs/reopen" => format!("'{}', 1, 'w'", &list("status = 'failed'").await[..36]),
        "runs/postpone" => format!("'{{{queued}}}', '{{5,5,5,5,5}}'"),
        "runs/stranded" => "'default', 100, null, null, 864000, 1000".to_owned(),
        "runs/repair" => format!("'{{{queued}}}'"),
        "queues/serve" => "'default', now()".to_owned(),
        "runs/lock_unfinished" | "runs/reissue" => format!("'{{{queued}}}'"),
        "schedules/known" => "null".to_owned(),
        "schedules/decide" => "'maintenance.purge', '2026-01-02 03:00:00+00'".to_owned(),
        "schedules/note" => "'t', '{missed}', '{2026-01-02 03:00:00+00}', '{2026-01-02 03:00:00+00}', '{1}', '{then}'".to_owned(),
        "catalogue/load" => format!("'{catalogue}', 'test-workers'"),
        "catalogue/matches" => format!("'{catalogue}'"),
        "catalogue/strangers" => "'{default}', '{t.ok}'".to_owned(),
        "catalogue/unfinished" => "'{t.ok,t.sleep}'".to_owned(),
        "ops/renew" => format!("'{}'", &queued[..36]),
        "ops/redrive" => format!("'{}', 1, 'a test'", &queued[..36]),
        "ops/audit" => "'purge', 'all', 'a test', '{}'".to_owned(),
        "ops/index_state" => "'task_runs_pkey'".to_owned(),
        "ops/view_state" => "'runs', 'its file'".to_owned(),
        "ops/blockers" => "1".to_owned(),
        "testing/shape" => format!("'{}', 2, 't.ok', now()", &queued[..36]),
        "testing/scheduled" => "17000, 17000".to_owned(),
        "testing/due" => format!("'{{t.ok,t.sleep}}', '{{{queued}}}'"),
        "testing/forward" => "60".to_owned(),
        "testing/ended" => format!("'{run}'"),
        "testing/outbox_end" => String::new(),
        "ops/clock" | "ops/schema_version" | "ops/schema_owner" | "ops/may_work" | "ops/connections" | "ops/outbox_health"
        | "ops/queue_health" => String::new(),
        other => panic!("the test has no parameters for {other}"),
    }
}

#[tokio::test]
async fn no_statement_scans_a_large_table_and_each_uses_the_index_it_names() {
    let world = full_world().await;
    let (client, mut plans) = explained(&world).await;
    let mut wrong = Vec::new();
    for statement in ALL.iter().copied().filter(|statement| *statement != sql::runs::SUCCEED) {
        // Whoever runs it has the rights that it needs.
        let role = if statement == sql::catalogue::LOAD { "monalisa_owner" } else { "monalisa_worker" };
        client.batch_execute(&format!("set role {role}")).await.unwrap();
        let nodes = plan(&client, &mut plans, statement, &parameters(&world, statement).await).await;
        let text = |node: &Value, key: &str| node[key].as_str().unwrap_or_default().to_owned();
        for node in &nodes {
            if text(node, "Node Type") == "Seq Scan" && LARGE.contains(&text(node, "Relation Name").as_str()) {
                wrong.push(format!("{} scans {}: {}", statement.name, text(node, "Relation Name"), node["Filter"]));
            }
        }
        let mut used: BTreeSet<String> = nodes.iter().map(|node| text(node, "Index Name")).collect();
        used.extend(
            nodes
                .iter()
                .filter_map(|node| node["Conflict Arbiter Indexes"].as_array())
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
        for part in header_line(statement, "index").unwrap_or_default().split([';', ',', ' ']) {
            if ["_idx", "_key", "_pkey"].iter().any(|ending| part.ends_with(ending)) && !used.contains(part) {
                wrong.push(format!("{} does not use {part} but {used:?}", statement.name));
            }
        }
        if statement.name.ends_with("/claim") {
            for node in &nodes {
                let kind = text(node, "Node Type");
                if kind.contains("Sort") || kind.contains("Bitmap") {
                    wrong.push(format!("{} has a node {kind}", statement.name));
                }
            }
        }
        if statement.name.ends_with("/purge") && nodes.iter().any(|node| text(node, "Node Type").contains("Sort")) {
            wrong.push(format!("{} sorts", statement.name));
        }
        // From the lower bound on and to the upper one, whatever lies around them.
        let bounded = match statement.name {
            name if name.ends_with("/claim") => Some(("_pending_idx", "available_at <=")),
            "runs/stranded" => Some(("_unfinished_due_idx", "available_at <")),
            "idempotency/purge" => Some(("_expires_at_idx", "expires_at <")),
            name if name.ends_with("/purge") => Some(("_sent_idx", "sent_at <")),
            _ => None,
        };
        if let Some((ending, upper)) = bounded {
            let index = nodes.iter().find(|node| text(node, "Index Name").ends_with(ending)).unwrap();
            let condition = text(index, "Index Cond");
            let lower = match ending {
                "_expires_at_idx" => &["expires_at >"][..],
                "_sent_idx" => &["sent_at >="],
                "_pending_idx" => &["queue", "ROW(available_at, id) >="],
                _ => &["queue", "available_at >="],
            };
            for column in lower.iter().chain([&upper]) {
                if !condition.contains(column) {
                    wrong.push(format!("{}: {column} is no index condition: {condition}", statement.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_finish_inside_the_effect_transaction_finds_its_run_by_key() {
    let world = full_world().await;
    let (client, mut plans) = explained(&world).await;
    let held = world.one("select run_id::text, token::text from work.task_runs where status = 'running' limit 1", &[]).await;
    let (run, token): (&str, &str) = (held.get(0), held.get(1));
    let open = format!("prepare s as {}; begin; set local work.token = '{token}'", sql::runs::SUCCEED.text);
    client.batch_execute(&open).await.unwrap();
    client.batch_execute(&format!("execute s ('{run}', '{token}', '{{}}')")).await.unwrap();
    let nodes = nodes(&mut plans);
    assert!(nodes.iter().any(|node| node["Index Name"] == "task_runs_pkey"), "{nodes:#?}");
    assert!(nodes.iter().all(|node| node["Node Type"] != "Seq Scan"), "{nodes:#?}");
}

#[tokio::test]
async fn an_operators_act_on_one_run_reads_no_other() {
    let world = full_world().await;
    let (client, mut plans) = explained(&world).await;
    for (act, status) in [("cancel", "queued"), ("cancel", "running"), ("retry", "failed")] {
        let run: String = world
            .one("select run_id::text from work.task_runs where status = $1 and tenant_id is not null limit 1", &[&status])
            .await
            .get(0);
        let _ = nodes(&mut plans);
        client.batch_execute(&format!("select work.{act}('{run}', 'a reason')")).await.unwrap();
        let nodes = nodes(&mut plans);
        let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["Index Name"].as_str()).collect();
        assert!(used.contains("task_runs_pkey"), "{act}: {used:?}");
        let scans = |node: &&Value| node["Node Type"] == "Seq Scan" && LARGE.contains(&node["Relation Name"].as_str().unwrap_or_default());
        assert_eq!(nodes.iter().find(scans), None, "{act}");
    }
}

#[tokio::test]
async fn a_look_at_the_views_reads_some_ten_thousand_rows_by_an_index_however_many_there_are() {
    let world = full_world().await;
    let (client, mut plans) = explained(&world).await;
    client.batch_execute("set role monalisa_observer; set app.tenant_id = '1'").await.unwrap();
    for (view, index) in [
        ("queue_status", "task_runs_unfinished_due_idx"),
        ("outbox_status", "outbox_messages_pending_idx"),
        ("unit_status", "task_runs_unfinished_due_idx"),
        ("failures", "task_runs_failed_idx"),
        ("runs", "task_runs_pkey"),
        ("runs((select max(run_id::text)::uuid from work.runs))", "task_runs_pkey"),
        ("trail", "run_events_pkey"),
        ("schedule_history where schedule = 't.ok' order by scheduled_for desc limit 20", "task_runs_origin_key"),
        ("trail((select max(run_id::text)::uuid from work.runs))", "run_events_run_id_idx"),
    ] {
        let _ = nodes(&mut plans);
        client.batch_execute(&format!("select * from work.{view}")).await.unwrap_or_else(|error| panic!("{view}: {error:?}"));
        let nodes = nodes(&mut plans);
        let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["Index Name"].as_str()).collect();
        assert!(used.contains(index), "{view}: {used:?}");
        for node in nodes.iter().filter(|node| LARGE.contains(&node["Relation Name"].as_str().unwrap_or_default())) {
            assert_ne!(node["Node Type"], "Seq Scan", "{view} scans {}", node["Relation Name"]);
            let rows = node["Actual Rows"].as_f64().unwrap_or_default();
            assert!(rows <= 10_001.0, "{view} reads {rows} rows of {}", node["Relation Name"]);
        }
    }
}

#[tokio::test]
async fn two_relays_claim_at_once_and_share_no_row_and_wait_for_none() {
    let world = World::without_queues().await;
    for unit in ["t.ok", "t.platform"] {
        let tenant = if unit == "t.ok" { "1" } else { "null" };
        let sql = format!("select work.dispatch('{unit}', '{{}}', {tenant}) from generate_series(1, 15)");
        world.db.batch_execute(&sql).await.unwrap();
    }
    let second = connect(&world.url(Some("test_worker"))).await;
    world.db.batch_execute("begin").await.unwrap();
    second.batch_execute("begin; set local lock_timeout = '1ms'").await.unwrap();
    for (statement, queue) in [(sql::outbox::CLAIM, "default"), (sql::platform_outbox::CLAIM, "bulk")] {
        let claim = async |client: &Client, limit: i64| -> BTreeSet<i64> {
            let none: Option<&str> = None;
            let rows = client.query(statement.text, &[&queue, &none, &None::<i64>, &None::<f64>, &limit]).await.unwrap();
            rows.iter().map(|row| row.get("id")).collect()
        };
        let (first, other) = (claim(&world.db, 10).await, claim(&second, 10).await);
        assert_eq!((first.len(), other.len()), (10, 5), "{queue}");
        assert!(first.is_disjoint(&other));
        assert!(first.iter().max() < other.iter().min(), "the oldest go first");
    }
}

#[tokio::test]
async fn a_row_due_at_infinity_neither_goes_out_nor_stops_the_others() {
    let world = World::without_queues().await;
    for (table, column, tenant, due, claim) in [
        ("outbox_messages", "tenant_id, ", "1, ", sql::outbox::DUE, sql::outbox::CLAIM),
        ("platform_outbox_messages", "", "", sql::platform_outbox::DUE, sql::platform_outbox::CLAIM),
    ] {
        let insert = async |due: &str| {
            let sql = format!(
                "insert into work.{table} ({column}run_id, queue, envelope, available_at) values ({tenant}gen_random_uuid(), 'bulk', '{{}}', {due})"
            );
            world.db.batch_execute(&sql).await.unwrap();
        };
        let none = (vec![None::<&str>; 2], vec![None::<i64>; 2], vec![None::<f64>; 2]);
        let bulk = async || -> (bool, Option<f64>) {
            let rows = world.db.query(due.text, &[&["bulk", "default"].as_slice(), &none.0, &none.1, &none.2]).await.unwrap();
            let row = rows.iter().find(|row| row.get::<_, &str>("queue") == "bulk").expect("a row a queue");
            (row.get("due"), row.get("wait_s"))
        };
        insert("'infinity'").await;
        assert_eq!(bulk().await, (false, None));
        insert("now() + interval '100 s'").await;
        assert!(matches!(bulk().await, (false, Some(seconds)) if (90.0..101.0).contains(&seconds)));
        insert("'-infinity'").await;
        assert!(matches!(bulk().await, (true, Some(_))));
        let rows = world.db.query(claim.text, &[&"bulk", &None::<&str>, &None::<i64>, &None::<f64>, &10_i64]).await.unwrap();
        let due: Vec<&str> = rows.iter().map(|row| row.get("available_at")).collect();
        assert_eq!(due, ["-infinity"]);
    }
}
