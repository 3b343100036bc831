//! Queues and their attributes.

use aws_sdk_sqs::types::QueueAttributeName;

use crate::support::{code, world};

#[tokio::test]
async fn a_missing_queue_is_a_typed_error_everywhere() {
    let world = world().await;
    let queue = world.server.queue_url("none");
    let sqs = &world.sqs;
    let sent = sqs.send_message().queue_url(&queue).message_body("x").send().await;
    assert!(sent.unwrap_err().into_service_error().is_queue_does_not_exist());
    let received = sqs.receive_message().queue_url(&queue).send().await;
    assert!(received.unwrap_err().into_service_error().is_queue_does_not_exist());
    let found = sqs.get_queue_url().queue_name("none").send().await;
    assert!(found.unwrap_err().into_service_error().is_queue_does_not_exist());
    let described = sqs.get_queue_attributes().queue_url(&queue).attribute_names(QueueAttributeName::All).send().await;
    assert!(described.unwrap_err().into_service_error().is_queue_does_not_exist());
    let deleted = sqs.delete_message().queue_url(&queue).receipt_handle("x").send().await;
    assert_eq!(code(deleted), "NonExistentQueue");
}

#[tokio::test]
async fn a_production_url_reaches_the_queue_of_that_name() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "x").await;
    assert_eq!(world.peek(&queue).await.len(), 1);
    assert_eq!(world.sqs.get_queue_url().queue_name("q").send().await.unwrap().queue_url, Some(queue.clone()));
    assert_eq!(queue, world.server.queue_url("q"));
}

#[tokio::test]
async fn attributes_outside_their_range_are_refused() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let set = |name: QueueAttributeName, value: &str| world.sqs.set_queue_attributes().queue_url(&queue).attributes(name, value);
    for (name, value) in [
        (QueueAttributeName::MaximumMessageSize, "1023"),
        (QueueAttributeName::MaximumMessageSize, "1048577"),
        (QueueAttributeName::VisibilityTimeout, "43201"),
        (QueueAttributeName::DelaySeconds, "901"),
        (QueueAttributeName::ReceiveMessageWaitTimeSeconds, "21"),
    ] {
        let refused = code(set(name.clone(), value).send().await);
        assert!(refused.starts_with("InvalidAttributeValue") || refused == "InvalidParameterValue", "{name} {value}: {refused}");
    }
    set(QueueAttributeName::VisibilityTimeout, "43200").send().await.unwrap();
    assert_eq!(world.attribute(&queue, QueueAttributeName::VisibilityTimeout).await, "43200");
}

#[tokio::test]
async fn attributes_are_told_only_by_name() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let none = world.sqs.get_queue_attributes().queue_url(&queue).send().await.unwrap();
    assert!(none.attributes.unwrap_or_default().is_empty());
    let all = world.sqs.get_queue_attributes().queue_url(&queue).attribute_names(QueueAttributeName::All).send().await.unwrap();
    assert!(all.attributes.unwrap().len() > 5);
}

#[tokio::test]
async fn making_a_queue_again_with_other_attributes_is_refused() {
    let world = world().await;
    let queue = world.queue("q", &[(QueueAttributeName::VisibilityTimeout, "60")]).await;
    assert_eq!(world.queue("q", &[]).await, queue);
    let again = |name: QueueAttributeName, value: &str| world.sqs.create_queue().queue_name("q").attributes(name, value);
    assert_eq!(code(again(QueueAttributeName::VisibilityTimeout, "61").send().await), "QueueAlreadyExists");
    assert_eq!(code(again(QueueAttributeName::MaximumMessageSize, "2048").send().await), "QueueAlreadyExists");
    assert_eq!(code(world.sqs.create_queue().queue_name("a b").send().await), "InvalidParameterValue");
}

#[tokio::test]
async fn a_redrive_policy_needs_a_queue_that_exists() {
    let world = world().await;
    let policy = |name: &str, count: &str| {
        format!(r#"{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:{name}","maxReceiveCount":{count}}}"#)
    };
    let create = |policy: String| world.sqs.create_queue().queue_name("q").attributes(QueueAttributeName::RedrivePolicy, policy);
    assert_eq!(code(create(policy("q-dlq", "7")).send().await), "InvalidParameterValue");
    world.queue("q-dlq", &[]).await;
    assert_eq!(code(create(policy("q-dlq", "0")).send().await), "InvalidParameterValue");
    assert_eq!(code(create("no JSON".to_owned()).send().await), "InvalidParameterValue");
    let made = || create(policy("q-dlq", "\"7\"")).send();
    made().await.unwrap();
    made().await.unwrap();

    let sources = world.sqs.list_dead_letter_source_queues().queue_url(world.server.queue_url("q-dlq")).send().await.unwrap();
    assert_eq!(sources.queue_urls, [world.server.queue_url("q")]);
}

#[tokio::test]
async fn a_purge_empties_the_queue_once_a_minute() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    world.sqs.purge_queue().queue_url(&queue).send().await.unwrap();
    assert!(world.peek(&queue).await.is_empty());
    let again = world.sqs.purge_queue().queue_url(&queue).send().await.unwrap_err().into_service_error();
    assert!(again.is_purge_queue_in_progress(), "{again:?}");
}
