//! Dead letters, as an operator handles them.

use std::time::Duration;

use aws_sdk_sqs::types::MessageSystemAttributeName;
use chrono::{DateTime, Utc};

use crate::{error::Error, queue::Queue};

use super::{BATCH_ENTRIES, Queues, Target, sdk};

/// How long a receive waits for letters: all servers of SQS are asked.
const WAIT: Duration = Duration::from_secs(2);

/// A message in a dead-letter queue.
#[derive(Debug, Clone)]
pub(crate) struct RawLetter {
    pub(crate) message_id: String,
    pub(crate) receipt: String,
    pub(crate) body: String,
    /// Attributes `code` and `reason`, of bodies that no run stands behind.
    pub(crate) code: Option<String>,
    pub(crate) reason: Option<String>,
    /// When it was sent, or first sent where SQS moved it.
    pub(crate) sent_at: Option<DateTime<Utc>>,
}

impl Queues {
    /// Receives some dead letters and hides them for so long.
    pub(crate) async fn receive_letters(&self, queue: Queue, hide: Duration) -> Result<Vec<RawLetter>, Error> {
        let answer = self
            .receiver
            .receive_message()
            .queue_url(self.url(Target::DeadLetters(queue)))
            .max_number_of_messages(BATCH_ENTRIES as i32)
            .wait_time_seconds(WAIT.as_secs() as i32)
            .visibility_timeout(hide.as_secs() as i32)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp)
            .message_attribute_names("code")
            .message_attribute_names("reason")
            .send()
            .await
            .map_err(|error| sdk("ReceiveMessage", &error))?;
        let letters = answer.messages.unwrap_or_default().into_iter().filter_map(|message| {
            let text = |name: &str| message.message_attributes.as_ref()?.get(name)?.string_value.clone();
            let sent_at = message.attributes.as_ref().and_then(|attributes| attributes.get(&MessageSystemAttributeName::SentTimestamp));
            Some(RawLetter {
                code: text("code"),
                reason: text("reason"),
                sent_at: sent_at.and_then(|millis| DateTime::from_timestamp_millis(millis.parse().ok()?)),
                message_id: message.message_id.unwrap_or_default(),
                receipt: message.receipt_handle?,
                body: message.body.unwrap_or_default(),
            })
        });
        Ok(letters.collect())
    }
}
