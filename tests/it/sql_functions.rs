//! The functions of schema `work`: whose rights they run with, who may call them, and that their headers list what they raise.

use std::collections::{BTreeMap, BTreeSet};

use monalisa::sql::REAPPLIED;

use crate::{sql_files::header_line, support::World};

/// They run with the rights of their owner: producers, workers and operators have none on the tables, or less than the function needs.
const WITH_OWNERS_RIGHTS: [&str; 20] = [
    "audit",
    "cancel",
    "catalogue_state",
    "decide_occurrence",
    "dispatch",
    "dispatch_many",
    "failures",
    "fire",
    "load_catalogue",
    "outbox_status",
    "publish",
    "queue_status",
    "redrive",
    "renew",
    "retry",
    "run",
    "runs",
    "succeed",
    "trail",
    "unit_status",
];

async fn names(world: &World, condition: &str) -> Vec<String> {
    let sql = format!("select p.proname::text from pg_proc p where p.pronamespace = 'work'::regnamespace and ({condition}) order by 1");
    world.db.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_database_has_one_function_a_file_with_one_signature() {
    let world = World::without_queues().await;
    let files: Vec<String> = REAPPLIED
        .iter()
        .filter_map(|statement| statement.name.strip_prefix("functions/"))
        .map(str::to_owned)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    assert_eq!(names(&world, "true").await, files);
}

#[tokio::test]
async fn only_the_functions_that_must_run_with_the_owners_rights() {
    let world = World::without_queues().await;
    assert_eq!(names(&world, "p.prosecdef").await, WITH_OWNERS_RIGHTS);
}

#[tokio::test]
async fn no_function_can_be_made_to_find_somebody_elses_objects() {
    let world = World::without_queues().await;
    let pinned = "coalesce(p.proconfig @> array['search_path=pg_catalog, pg_temp'], false)";
    assert_eq!(names(&world, &format!("not {pinned}")).await, [] as [&str; 0]);
    assert!(names(&world, pinned).await.len() > 15);
}

#[tokio::test]
async fn the_public_may_call_no_function_and_use_no_table() {
    let world = World::without_queues().await;
    let open = "exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)";
    assert_eq!(names(&world, open).await, [] as [&str; 0]);
    let open = "select count(*) from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'work'::regnamespace and a.grantee = 0";
    assert_eq!(world.count(open).await, 0);
    let open = "select count(*) from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'work' and a.grantee = 0";
    assert_eq!(world.count(open).await, 0);
}

#[tokio::test]
async fn a_producer_may_call_the_enqueue_functions_and_no_other() {
    let world = World::without_queues().await;
    let may = names(&world, "has_function_privilege('test_api', p.oid, 'execute')").await;
    assert_eq!(may, ["catalogue_state", "dispatch", "dispatch_many", "publish", "run"]);
}

#[tokio::test]
async fn only_an_operator_may_call_the_functions_of_operators() {
    let world = World::without_queues().await;
    let roles = ["test_operator", "test_api", "test_worker", "monalisa_observer"];
    let may = roles.map(|role| format!("has_function_privilege('{role}', p.oid, 'execute')"));
    assert_eq!(names(&world, &format!("{} and not ({})", may[0], may[1..].join(" or "))).await, ["cancel", "retry"]);
}

/// The codes in the text of a function, each with the name its message begins with.
fn raised(text: &str) -> BTreeMap<String, String> {
    let mut codes = BTreeMap::new();
    for statement in text.split("raise exception '").skip(1) {
        let name = statement.split(':').next().unwrap().to_owned();
        let code = statement.split("errcode = '").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let end = statement.find(';').unwrap();
        assert!(statement[..statement.len().min(end + 400)].contains("hint = "), "{name} is raised without a hint");
        codes.insert(code, name);
    }
    codes
}

#[test]
fn a_header_lists_the_errors_a_function_raises_by_its_own_hand() {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for statement in REAPPLIED {
        let listed = header_line(*statement, "raises").unwrap_or_default();
        for (code, name) in raised(statement.text) {
            assert!(listed.contains(&format!("{code} {name}")), "{} raises {code} {name} and its header does not say so", statement.name);
            let known = all.entry(code.clone()).or_insert_with(|| name.clone());
            assert_eq!(*known, name, "{code} has two names");
        }
    }
    let codes: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(
        codes,
        [
            "ML001", "ML002", "ML003", "ML004", "ML005", "ML006", "ML007", "ML008", "ML009", "ML010", "ML011", "ML012", "ML013", "ML015",
            "ML016", "ML017", "ML018", "ML019", "ML030", "ML031", "ML032", "ML035", "ML036"
        ]
    );
}
