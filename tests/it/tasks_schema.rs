//! `docs/tasks.schema.json` describes what is generated, and refuses what the database refuses.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use crate::{
    examples::{command, python, root},
    support::World,
};

/// Reads documents, one a line, and prints for each whether it fits.
const VALIDATE: &str = "
import json, sys, fastjsonschema
validate = fastjsonschema.compile(json.load(open(sys.argv[1])))
for line in sys.stdin:
    try:
        validate(json.loads(line))
        print('fits')
    except fastjsonschema.JsonSchemaException as refused:
        print(refused)
";

/// What the schema says of each document; nothing where it fits.
fn refusals(documents: &[Value]) -> Vec<Option<String>> {
    let mut validator = command(python())
        .args(["-c", VALIDATE])
        .arg(root().join("docs/tasks.schema.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run scripts/setup --examples");
    let mut input = validator.stdin.take().unwrap();
    for document in documents {
        writeln!(input, "{document}").unwrap();
    }
    drop(input);
    let output = validator.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<_> = text.lines().map(|line| (line != "fits").then(|| line.to_owned())).collect();
    assert_eq!(answers.len(), documents.len());
    answers
}

#[test]
fn what_programs_generate_fits_the_schema() {
    let generated = ["workers", "test-workers", "example-workers"].map(|program| {
        let output = std::process::Command::new(crate::support::binary(program)).args(["tasks", "generate", "-"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    });
    assert!(generated[1]["tasks"].as_array().unwrap().len() > 5 && !generated[1]["subscriptions"].as_array().unwrap().is_empty());
    assert_eq!(refusals(&generated), [None, None, None]);
}

#[tokio::test]
async fn the_schema_and_the_database_take_and_refuse_the_same() {
    let world = World::without_queues().await;
    let task = |field: &str, value: Value| {
        let mut task = json!({"name": "o.a", "queue": "bulk", "context": "system"});
        task[field] = value;
        json!({"version": 1, "tasks": [task], "subscriptions": []})
    };
    let subscription = |field: &str, value: Value| {
        let mut subscription = json!({"name": "o.b", "queue": "bulk", "type": "a.b", "version": 1});
        subscription[field] = value;
        json!({"version": 1, "tasks": [], "subscriptions": [subscription]})
    };
    let without = |field: &str, mut document: Value| {
        for list in ["tasks", "subscriptions"] {
            for unit in document[list].as_array_mut().unwrap() {
                unit.as_object_mut().unwrap().remove(field);
            }
        }
        document
    };
    let long = format!("o.{}", "a".repeat(62));
    let right = vec![
        json!({"tasks": [], "subscriptions": []}),
        json!({"version": 1, "tasks": [], "subscriptions": [], "comment": "left alone"}),
        task("name", json!(long)),
        task("context", json!("platform")),
        without("context", task("overlap", json!("allow"))),
        task("overlap", Value::Null),
        task("timeout_seconds", json!(39_600)),
        task("schedule", json!("rate(1 hour)")),
        task("schedule", Value::Null),
        task("timezone", json!("Europe/Lisbon")),
        json!({"tasks": [{"name": "o.shipped", "queue": "bulk", "service": "monalisa"}], "subscriptions": []}),
        task("comment", json!(["left alone"])),
        subscription("version", json!(7)),
        without("version", subscription("context", json!("tenant"))),
    ];
    let mut wrong = vec![
        json!([]),
        json!("tasks"),
        json!({"tasks": []}),
        json!({"subscriptions": []}),
        json!({"tasks": {}, "subscriptions": []}),
        json!({"tasks": ["o.a"], "subscriptions": []}),
        json!({"version": 2, "tasks": [], "subscriptions": []}),
        json!({"version": "one", "tasks": [], "subscriptions": []}),
        without("name", task("overlap", json!("skip"))),
        without("queue", task("overlap", json!("skip"))),
        without("type", subscription("version", json!(1))),
        without("context", task("schedule", json!("rate(1 hour)"))),
        json!({"tasks": [{"name": "o.a", "queue": "bulk", "context": "tenant", "schedule": "rate(1 hour)"}], "subscriptions": []}),
    ];
    for name in ["", "O.a", "o..a", "1o", "o.a.", "o-a", &format!("{long}a")] {
        wrong.push(task("name", json!(name)));
    }
    for (field, value) in [
        ("name", Value::Null),
        ("queue", json!("urgent")),
        ("queue", Value::Null),
        ("context", json!("user")),
        ("overlap", json!("queue")),
        ("timeout_seconds", json!(0)),
        ("timeout_seconds", json!(39_601)),
        ("timeout_seconds", json!("soon")),
        ("schedule", json!("hourly")),
        ("schedule", json!("")),
        ("schedule", json!("rate()")),
        ("service", json!("somebody else")),
    ] {
        wrong.push(task(field, value));
    }
    for (field, value) in [
        ("type", json!("")),
        ("type", json!("A.b")),
        ("version", json!(0)),
        ("version", json!("one")),
        ("version", json!(1.5)),
        ("queue", json!("urgent")),
    ] {
        wrong.push(subscription(field, value));
    }
    for (documents, fits) in [(right, true), (wrong, false)] {
        for (document, refused) in documents.iter().zip(refusals(&documents)) {
            assert_eq!(refused.is_none(), fits, "the schema, of {document}: {refused:?}");
            let loaded = world.db.query("select work.load_catalogue($1, 'other')", &[document]).await;
            assert_eq!(loaded.is_ok(), fits, "the database, of {document}: {loaded:?}");
            if let Err(error) = loaded {
                assert_eq!(error.code().unwrap().code(), "ML009", "{document}: {error:?}");
            }
        }
    }
}
