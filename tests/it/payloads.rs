//! Payloads outlive deploys: what was enqueued for an older program, and for a newer one whose deploy was rolled back.

use uuid::Uuid;

use crate::support::{Process, RELAY, World};

/// The program of before (`workers-before`), which has the same units in their old shapes.
async fn start_before(world: &World) -> Process {
    let process = world.spawn("workers-before", &[RELAY]);
    process.log("ready").await;
    process
}

async fn note(world: &World, run: Uuid) -> String {
    world.run_is(run, "succeeded").await;
    world.one("select note from public.effects where run_id = $1", &[&run]).await.get(0)
}

async fn publish(world: &World, payload: &str, version: i32) -> Uuid {
    let sql = "select run_id from work.publish('test.sold', $1::text::jsonb, $2, 1)";
    world.one(sql, &[&payload, &version]).await.get(0)
}

#[tokio::test]
async fn what_waits_from_before_a_deploy_is_handled_after_it() {
    let world = World::new().await;
    let receipt = world.dispatch("p.send_receipt", r#"{"order_id": 7, "mail": "ana@example.org"}"#).await;
    let reminder = world.dispatch("p.remind", r#"{"order_id": 7}"#).await;
    let sale = publish(&world, r#"{"euros": 7}"#, 1).await;
    let _after = world.workers().await;
    assert_eq!(note(&world, receipt).await, "7 to ana@example.org, 1 in English");
    assert_eq!(note(&world, reminder).await, "reminder of 7");
    assert_eq!(note(&world, sale).await, "700 cents");
    // And the new shapes beside them.
    let receipt = world.dispatch("p.send_receipt", r#"{"order_id": 8, "email": "bo@example.org", "copies": 2, "language": "latin"}"#).await;
    let reminder = world.dispatch("p.remind_customer", r#"{"order_id": 8}"#).await;
    let sale = publish(&world, r#"{"cents": 801}"#, 2).await;
    assert_eq!(note(&world, receipt).await, "8 to bo@example.org, 2 in Unknown");
    assert_eq!(note(&world, reminder).await, "reminder of 8");
    assert_eq!(note(&world, sale).await, "801 cents");
}

#[tokio::test]
async fn what_was_enqueued_for_a_deploy_that_is_rolled_back_is_handled_by_the_program_of_before_or_fails_by_name_until_it_is_retried() {
    let world = World::new().await;
    // A field that is new is not looked at by the old program; one that has a new name is missed.
    let added = world.dispatch("p.send_receipt", r#"{"order_id": 7, "mail": "ana@example.org", "copies": 2, "language": "english"}"#).await;
    let renamed = world.dispatch("p.send_receipt", r#"{"order_id": 8, "email": "bo@example.org"}"#).await;
    let mut before = start_before(&world).await;
    assert_eq!(note(&world, added).await, "before: 7 to ana@example.org");
    world.run_is(renamed, "failed").await;
    assert_eq!(world.last_error(renamed).await, "PAYLOAD_UNDECODABLE: the payload does not fit: missing field `mail`");
    assert_eq!(world.counters(renamed).await.failures, 1, "it is not tried in vain");
    assert!(before.stop().await.success());

    let _after = world.workers().await;
    world.one("select work.retry($1, 'the program that knows it is deployed again')", &[&renamed]).await;
    assert_eq!(note(&world, renamed).await, "8 to bo@example.org, 1 in English");
}
