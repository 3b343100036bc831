//! What a batch may be.

use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, QueueAttributeName};

use crate::support::{code, entry, world};

#[tokio::test]
async fn a_batch_has_one_to_ten_entries() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let batch = |count: usize| {
        let entries = (0..count).map(|number| entry(&number.to_string(), "x")).collect();
        world.sqs.send_message_batch().queue_url(&queue).set_entries(Some(entries))
    };
    let refused = batch(0).send().await.unwrap_err().into_service_error();
    assert!(refused.is_empty_batch_request(), "{refused:?}");
    let refused = batch(11).send().await.unwrap_err().into_service_error();
    assert!(refused.is_too_many_entries_in_batch_request(), "{refused:?}");
    assert_eq!(batch(10).send().await.unwrap().successful().len(), 10);
}

#[tokio::test]
async fn entry_ids_are_distinct_words_of_at_most_80() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let batch =
        |first: &str, second: &str| world.sqs.send_message_batch().queue_url(&queue).entries(entry(first, "x")).entries(entry(second, "x"));
    for bad in ["a b!", "é", "a.b", &"x".repeat(81)] {
        let refused = batch("a", bad).send().await.unwrap_err().into_service_error();
        assert!(refused.is_invalid_batch_entry_id(), "{bad}: {refused:?}");
    }
    let refused = batch("a", "a").send().await.unwrap_err().into_service_error();
    assert!(refused.is_batch_entry_ids_not_distinct(), "{refused:?}");
    batch(&"x".repeat(80), "0192f0c1-aaaa_7bbb").send().await.unwrap();

    let delete = |id: &str| DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle("x").build().unwrap();
    let refused = world.sqs.delete_message_batch().queue_url(&queue).entries(delete("a!")).send().await;
    assert_eq!(code(refused), "InvalidBatchEntryId");
}

#[tokio::test]
async fn a_batch_has_at_most_one_mebibyte_in_all_and_nothing_of_a_longer_one_is_sent() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let half = "x".repeat(524_288);
    let batch = |second: &str| world.sqs.send_message_batch().queue_url(&queue).entries(entry("a", &half)).entries(entry("b", second));
    let refused = batch(&format!("{half}x")).send().await.unwrap_err().into_service_error();
    assert!(refused.is_batch_request_too_long(), "{refused:?}");
    assert_eq!(world.attribute(&queue, QueueAttributeName::ApproximateNumberOfMessages).await, "0");
    assert_eq!(batch(&half).send().await.unwrap().successful().len(), 2);
}
