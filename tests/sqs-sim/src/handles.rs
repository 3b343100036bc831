//! What is done with a receipt handle: delete, and change of visibility, alone and in batches.
//!
//! A handle is the message's latest one, an older one, one whose visibility timeout is over, or garbage; AWS treats
//! each differently, and so does this file.

use std::time::{Duration, Instant};

use rustack_sqs_model::input::{
    ChangeMessageVisibilityBatchInput, ChangeMessageVisibilityInput, DeleteMessageBatchInput, DeleteMessageInput,
};
use rustack_sqs_model::output::{ChangeMessageVisibilityBatchOutput, DeleteMessageBatchOutput};
use rustack_sqs_model::types::{ChangeMessageVisibilityBatchResultEntry, DeleteMessageBatchResultEntry};

use crate::error::ApiError;
use crate::rules::{self, MAX_VISIBILITY};
use crate::sim::{ExpiredHandle, Sim, path, queue_name};
use crate::sync::lock;

impl Sim {
    /// Deletes a message. An older handle answers success and deletes nothing; so does one of a deleted message.
    /// The latest handle deletes also after its visibility timeout.
    pub(crate) async fn delete(&self, url: &str, handle: &str) -> Result<(), ApiError> {
        let name = queue_name(url)?;
        let (token, lease) = {
            let mut store = lock(&self.store);
            store.queue(name)?;
            let handle = store.handle(name, handle)?;
            let Some(held) = store.latest(handle) else {
                return Ok(());
            };
            let lease = held.lease.clone();
            store.messages.remove(&handle.token);
            (handle.token, lease)
        };
        let Some(lease) = lease else { return Ok(()) };
        // Only a message in flight can be deleted in the engine; one that waits again is passed over when it comes up.
        if lease.visible_at <= Instant::now() && !self.hold_back(name, &lease.engine_handle).await {
            if let Some(queue) = lock(&self.store).queues.get_mut(name) {
                queue.ghosts.insert(token);
            }
            return Ok(());
        }
        self.engine.delete_message(DeleteMessageInput { queue_url: path(name), receipt_handle: lease.engine_handle }).await?;
        Ok(())
    }

    /// Whether the engine still has the message in flight; it then stays so.
    async fn hold_back(&self, name: &str, engine_handle: &str) -> bool {
        let input = ChangeMessageVisibilityInput {
            queue_url: path(name),
            receipt_handle: engine_handle.to_owned(),
            visibility_timeout: MAX_VISIBILITY,
        };
        self.engine.change_message_visibility(input).await.is_ok()
    }

    /// Deletes a batch; a bad handle fails its own entry.
    pub(crate) async fn delete_batch(&self, input: DeleteMessageBatchInput) -> Result<DeleteMessageBatchOutput, ApiError> {
        lock(&self.store).queue(queue_name(&input.queue_url)?)?;
        rules::batch_ids(input.entries.iter().map(|entry| entry.id.as_str()))?;
        let mut output = DeleteMessageBatchOutput::default();
        for entry in input.entries {
            match self.delete(&input.queue_url, &entry.receipt_handle).await {
                Ok(()) => output.successful.push(DeleteMessageBatchResultEntry { id: entry.id }),
                Err(error) => output.failed.push(error.entry(entry.id)),
            }
        }
        Ok(output)
    }

    /// Starts the visibility timeout anew, from now. The 12 hours in all from the receive are a limit, not a clamp.
    pub(crate) async fn change_visibility(&self, url: &str, handle: &str, seconds: i32) -> Result<(), ApiError> {
        let name = queue_name(url)?;
        let engine_handle = {
            let mut store = lock(&self.store);
            store.queue(name)?;
            rules::visibility(seconds)?;
            let parsed = store.handle(name, handle)?;
            if !store.messages.contains_key(&parsed.token) {
                return Err(ApiError::invalid(format!(
                    "Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change."
                )));
            }
            let now = Instant::now();
            let latest = store.latest(parsed).and_then(|held| held.lease.as_mut());
            let Some(lease) = latest.filter(|lease| lease.visible_at > now) else {
                return self.expired_handle();
            };
            let asked = u64::try_from(seconds).unwrap_or(0);
            let used = lease.received_at.elapsed().as_secs();
            if used + asked > u64::try_from(MAX_VISIBILITY).unwrap_or(0) {
                return Err(ApiError::invalid(format!(
                    "Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]."
                )));
            }
            let visible_at = now + Duration::from_secs(asked);
            lease.visible_at = visible_at;
            let engine_handle = lease.engine_handle.clone();
            store.queue(name)?.wake.at(visible_at);
            engine_handle
        };
        let input = ChangeMessageVisibilityInput { queue_url: path(name), receipt_handle: engine_handle, visibility_timeout: seconds };
        match self.engine.change_message_visibility(input).await {
            Ok(_) if seconds == 0 => {
                self.wake(name);
                Ok(())
            }
            Ok(_) => Ok(()),
            // The timeout ended between the check and the call.
            Err(_) => self.expired_handle(),
        }
    }

    fn expired_handle(&self) -> Result<(), ApiError> {
        match self.options.expired_handle {
            ExpiredHandle::Accept => Ok(()),
            ExpiredHandle::Refuse => Err(ApiError::not_in_flight()),
        }
    }

    /// Changes a batch; what is wrong with an entry fails that entry.
    pub(crate) async fn change_visibility_batch(
        &self,
        input: ChangeMessageVisibilityBatchInput,
    ) -> Result<ChangeMessageVisibilityBatchOutput, ApiError> {
        lock(&self.store).queue(queue_name(&input.queue_url)?)?;
        rules::batch_ids(input.entries.iter().map(|entry| entry.id.as_str()))?;
        let mut output = ChangeMessageVisibilityBatchOutput::default();
        for entry in input.entries {
            match self.change_visibility(&input.queue_url, &entry.receipt_handle, entry.visibility_timeout).await {
                Ok(()) => output.successful.push(ChangeMessageVisibilityBatchResultEntry { id: entry.id }),
                Err(error) => output.failed.push(error.entry(entry.id)),
            }
        }
        Ok(output)
    }
}
