//! The null mode: every message is accepted and none is kept.

use std::time::Duration;

use rustack_sqs_model::input::ReceiveMessageInput;
use rustack_sqs_model::operations::SqsOperation;
use rustack_sqs_model::output::{SendMessageBatchOutput, SendMessageOutput};
use rustack_sqs_model::types::SendMessageBatchResultEntry;

use serde::Deserialize;

use crate::api::{json, parse};
use crate::error::ApiError;

/// The MD5 of nothing: senders that verify checksums will complain, the AWS SDK for Rust does not look.
const MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";
const MESSAGE_ID: &str = "00000000-0000-4000-8000-000000000000";

/// What matters of a batch here.
#[derive(Deserialize)]
struct Batch {
    #[serde(rename = "Entries")]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "Id")]
    id: String,
}

/// Answers a send as a success and any receive as empty, `latency` late; `None` for every other action.
pub(crate) async fn serve(operation: SqsOperation, body: &[u8], latency: Duration) -> Option<Result<Vec<u8>, ApiError>> {
    let answer = match operation {
        SqsOperation::SendMessage => json(&SendMessageOutput {
            message_id: Some(MESSAGE_ID.to_owned()),
            md5_of_message_body: Some(MD5.to_owned()),
            ..SendMessageOutput::default()
        }),
        SqsOperation::SendMessageBatch => parse(body).and_then(|batch| json(&accept(batch))),
        SqsOperation::ReceiveMessage => {
            let input = parse::<ReceiveMessageInput>(body).unwrap_or_default();
            let wait = input.wait_time_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(wait)).await;
            Ok(b"{}".to_vec())
        }
        _ => return None,
    };
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    Some(answer)
}

fn accept(batch: Batch) -> SendMessageBatchOutput {
    let accepted = batch.entries.into_iter().map(|entry| SendMessageBatchResultEntry {
        id: entry.id,
        message_id: MESSAGE_ID.to_owned(),
        md5_of_message_body: MD5.to_owned(),
        ..SendMessageBatchResultEntry::default()
    });
    SendMessageBatchOutput { successful: accepted.collect(), failed: Vec::new() }
}
