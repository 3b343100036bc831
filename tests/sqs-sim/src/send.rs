//! Sending: each message is checked, held here, and queued in the engine as a token.

use std::time::{Duration, Instant};

use rustack_sqs_core::message::{md5_of_body, md5_of_message_attributes};
use rustack_sqs_model::input::{SendMessageBatchInput, SendMessageInput};
use rustack_sqs_model::output::{SendMessageBatchOutput, SendMessageOutput};
use rustack_sqs_model::types::{SendMessageBatchRequestEntry, SendMessageBatchResultEntry};

use crate::error::ApiError;
use crate::rules;
use crate::sim::{Sim, path, queue_name};
use crate::store::{Held, MAX_BYTES};
use crate::sync::lock;

impl Sim {
    /// Sends one message.
    pub(crate) async fn send(&self, input: SendMessageInput) -> Result<SendMessageOutput, ApiError> {
        let queue = queue_name(&input.queue_url)?.to_owned();
        let max_bytes = lock(&self.store).queue(&queue)?.max_bytes;
        let entry = SendMessageBatchRequestEntry {
            id: String::new(),
            message_body: input.message_body,
            delay_seconds: input.delay_seconds,
            message_deduplication_id: input.message_deduplication_id,
            message_group_id: input.message_group_id,
            message_attributes: input.message_attributes,
            message_system_attributes: input.message_system_attributes,
        };
        let sent = self.queue_up(&queue, max_bytes, entry).await?;
        Ok(SendMessageOutput {
            message_id: Some(sent.message_id),
            md5_of_message_body: Some(sent.md5_of_message_body),
            md5_of_message_attributes: sent.md5_of_message_attributes,
            md5_of_message_system_attributes: None,
            sequence_number: None,
        })
    }

    /// Sends a batch. What is wrong with the batch refuses the call; what is wrong with a message fails its entry.
    pub(crate) async fn send_batch(&self, input: SendMessageBatchInput) -> Result<SendMessageBatchOutput, ApiError> {
        let queue = queue_name(&input.queue_url)?.to_owned();
        let max_bytes = lock(&self.store).queue(&queue)?.max_bytes;
        rules::batch_ids(input.entries.iter().map(|entry| entry.id.as_str()))?;
        let total: usize = input.entries.iter().map(|entry| rules::size(&entry.message_body, &entry.message_attributes)).sum();
        if total > MAX_BYTES {
            let message = format!("Batch requests cannot be longer than {MAX_BYTES} bytes. You have sent {total} bytes.");
            return Err(ApiError::spaced("BatchRequestTooLong", message));
        }
        let mut output = SendMessageBatchOutput::default();
        for entry in input.entries {
            let id = entry.id.clone();
            match self.queue_up(&queue, max_bytes, entry).await {
                Ok(sent) => output.successful.push(sent),
                Err(error) => output.failed.push(error.entry(id)),
            }
        }
        Ok(output)
    }

    /// Checks, holds and queues one message.
    pub(crate) async fn queue_up(
        &self,
        queue: &str,
        max_bytes: usize,
        mut entry: SendMessageBatchRequestEntry,
    ) -> Result<SendMessageBatchResultEntry, ApiError> {
        rules::message(&entry, max_bytes)?;
        let md5_of_message_body = md5_of_body(&entry.message_body);
        let md5_of_message_attributes = md5_of_message_attributes(&entry.message_attributes);
        let trace = entry.message_system_attributes.remove("AWSTraceHeader").and_then(|value| value.string_value);
        let token = lock(&self.store).hold(Held {
            queue: queue.to_owned(),
            body: entry.message_body,
            md5: md5_of_message_body.clone(),
            attributes: entry.message_attributes,
            group: entry.message_group_id,
            trace,
            ..Held::default()
        });
        let input = SendMessageInput {
            queue_url: path(queue),
            message_body: token.to_string(),
            delay_seconds: entry.delay_seconds,
            ..SendMessageInput::default()
        };
        let delay = u64::try_from(entry.delay_seconds.unwrap_or(0)).unwrap_or(0);
        match self.engine.send_message(input).await {
            Ok(sent) => {
                if let Ok(queue) = lock(&self.store).queue(queue) {
                    if delay > 0 {
                        queue.wake.at(Instant::now() + Duration::from_secs(delay));
                    } else {
                        queue.wake.now();
                    }
                }
                Ok(SendMessageBatchResultEntry {
                    id: entry.id,
                    message_id: sent.message_id.unwrap_or_default(),
                    md5_of_message_body,
                    md5_of_message_attributes,
                    sequence_number: None,
                })
            }
            Err(error) => {
                lock(&self.store).messages.remove(&token);
                Err(error.into())
            }
        }
    }
}
