//! What a message may be.

use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry};

use crate::support::{World, code, entry, short, system, text, world};

const MIB: usize = 1_048_576;

async fn refusal(world: &World, queue: &str, body: &str) -> String {
    code(world.sqs.send_message().queue_url(queue).message_body(body).send().await)
}

#[tokio::test]
async fn a_message_has_at_most_one_mebibyte_attributes_included() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    assert_eq!(world.attribute(&queue, QueueAttributeName::MaximumMessageSize).await, MIB.to_string());

    world.send(&queue, &"x".repeat(MIB)).await;
    assert_eq!(world.receive_one(&queue, 30).await.body().unwrap().len(), MIB);
    assert_eq!(refusal(&world, &queue, &"x".repeat(MIB + 1)).await, "InvalidParameterValue");

    // Name, type and value count: 1 + 6 + 3 bytes.
    let send = |size: usize| world.sqs.send_message().queue_url(&queue).message_body("x".repeat(size)).message_attributes("a", text("abc"));
    send(MIB - 10).send().await.unwrap();
    assert_eq!(code(send(MIB - 9).send().await), "InvalidParameterValue");
}

#[tokio::test]
async fn the_queues_own_limit_holds_for_each_message() {
    let world = world().await;
    let queue = world.queue("q", &[(QueueAttributeName::MaximumMessageSize, "1024")]).await;
    assert_eq!(world.attribute(&queue, QueueAttributeName::MaximumMessageSize).await, "1024");
    assert_eq!(refusal(&world, &queue, &"x".repeat(1025)).await, "InvalidParameterValue");

    let batch = world.sqs.send_message_batch().queue_url(&queue);
    let output = batch.entries(entry("small", "x")).entries(entry("large", &"x".repeat(1025))).send().await.unwrap();
    assert_eq!(output.successful()[0].id(), "small");
    assert_eq!((output.failed()[0].id(), output.failed()[0].code()), ("large", "InvalidParameterValue"));
    assert!(output.failed()[0].sender_fault());

    let larger = world.sqs.set_queue_attributes().queue_url(&queue).attributes(QueueAttributeName::MaximumMessageSize, "2048");
    larger.send().await.unwrap();
    world.send(&queue, &"x".repeat(1025)).await;
}

#[tokio::test]
async fn characters_that_xml_lacks_are_refused_and_all_others_arrive() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    for bad in ["\u{0}", "\u{8}", "\u{b}", "\u{1f}", "\u{fffe}", "\u{ffff}"] {
        let refused = world.sqs.send_message().queue_url(&queue).message_body(bad).send().await.unwrap_err();
        assert!(refused.into_service_error().is_invalid_message_contents(), "{bad:?}");
    }
    let output = world.sqs.send_message_batch().queue_url(&queue);
    let output = output.entries(entry("bad", "a\u{ffff}")).entries(entry("good", "é\t\r\n\u{7f}\u{85}\u{fffd}😀")).send().await.unwrap();
    assert_eq!((output.failed()[0].id(), output.failed()[0].code()), ("bad", "InvalidMessageContents"));
    assert_eq!(world.receive_one(&queue, 30).await.body(), Some("é\t\r\n\u{7f}\u{85}\u{fffd}😀"));
}

#[tokio::test]
async fn an_empty_body_is_refused() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    assert_eq!(refusal(&world, &queue, "").await, "MissingParameter");
}

#[tokio::test]
async fn a_delay_is_at_most_fifteen_minutes() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let send = |delay| world.sqs.send_message().queue_url(&queue).message_body("x").delay_seconds(delay);
    assert_eq!(code(send(901).send().await), "InvalidParameterValue");
    assert_eq!(code(send(-1).send().await), "InvalidParameterValue");
    send(900).send().await.unwrap();
    assert_eq!(world.attribute(&queue, QueueAttributeName::ApproximateNumberOfMessagesDelayed).await, "1");
}

#[tokio::test]
async fn a_standard_queue_takes_message_groups_and_returns_them_when_asked() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let send = |group: &str| world.sqs.send_message().queue_url(&queue).message_body("x").message_group_id(group);
    for bad in ["a b", "é", &"x".repeat(129)] {
        assert_eq!(code(send(bad).send().await), "InvalidParameterValue", "{bad}");
    }
    let group = format!("{}{}", "!~/:", "x".repeat(124));
    send(&group).send().await.unwrap();
    assert_eq!(system(&world.receive_one(&queue, 0).await, MessageSystemAttributeName::MessageGroupId), Some(group.as_str()));

    let batch = world.sqs.send_message_batch().queue_url(&queue);
    let output = batch.entries(entry("a", "x")).set_entries(Some(vec![with_group("t1"), with_group("a b")])).send().await.unwrap();
    assert_eq!((output.successful().len(), short(output.failed()[0].code())), (1, "InvalidParameterValue".to_owned()));
}

fn with_group(group: &str) -> SendMessageBatchRequestEntry {
    let id = group.replace(' ', "-");
    SendMessageBatchRequestEntry::builder().id(id).message_body("x").message_group_id(group).build().unwrap()
}
