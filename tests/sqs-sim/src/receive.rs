//! Receiving: the engine hands out tokens, which become messages again here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustack_sqs_core::message::md5_of_message_attributes;
use rustack_sqs_model::input::{DeleteMessageInput, ReceiveMessageInput};
use rustack_sqs_model::output::ReceiveMessageOutput;
use rustack_sqs_model::types::{Message, MessageAttributeValue};

use crate::error::ApiError;
use crate::rules;
use crate::sim::{Sim, path, queue_name};
use crate::store::Held;
use crate::sync::lock;

/// Every system attribute, asked from the engine so that `wanted` alone decides what the caller sees.
const ALL: &str = "All";

impl Sim {
    /// Receives up to ten messages, and waits for the first as long as asked. A caller that goes away while waiting
    /// takes nothing.
    pub(crate) async fn receive(&self, input: ReceiveMessageInput) -> Result<ReceiveMessageOutput, ApiError> {
        let name = queue_name(&input.queue_url)?.to_owned();
        let queue = lock(&self.store).queue(&name)?.clone();
        rules::receive(&input)?;
        let visibility = input.visibility_timeout.unwrap_or(queue.visibility);
        let wait = u64::try_from(input.wait_time_seconds.unwrap_or(queue.wait)).unwrap_or(0);
        let deadline = Instant::now() + Duration::from_secs(wait);
        loop {
            let news = queue.wake.listen();
            let looked = Instant::now();
            let messages = self.take(&name, visibility, &input).await?;
            if let Some(redrive) = &queue.redrive {
                self.wake(&redrive.target);
            }
            if !messages.is_empty() || looked >= deadline {
                return Ok(ReceiveMessageOutput { messages });
            }
            queue.wake.sleep(news, looked, deadline).await;
        }
    }

    /// Takes what is there. Messages that were deleted after their visibility timeout are passed over.
    async fn take(&self, name: &str, visibility: i32, asked: &ReceiveMessageInput) -> Result<Vec<Message>, ApiError> {
        let input = ReceiveMessageInput {
            queue_url: path(name),
            max_number_of_messages: asked.max_number_of_messages,
            visibility_timeout: Some(visibility),
            wait_time_seconds: Some(0),
            message_system_attribute_names: vec![ALL.to_owned()],
            ..ReceiveMessageInput::default()
        };
        loop {
            let received = self.engine.receive_message(input.clone()).await?.messages;
            let nothing = received.is_empty();
            let mut messages = Vec::with_capacity(received.len());
            for message in received {
                let token = message.body.as_deref().and_then(|body| body.parse().ok()).unwrap_or(0);
                let engine_handle = message.receipt_handle.clone().unwrap_or_default();
                let held = lock(&self.store).receive(name, token, &engine_handle, visibility);
                if let Some((handle, held)) = held {
                    messages.push(present(message, handle, held, asked));
                } else {
                    let queue_url = path(name);
                    self.engine.delete_message(DeleteMessageInput { queue_url, receipt_handle: engine_handle }).await?;
                }
            }
            if nothing || !messages.is_empty() {
                return Ok(messages);
            }
        }
    }

    /// Lets the long polls of a queue look again.
    pub(crate) fn wake(&self, name: &str) {
        if let Ok(queue) = lock(&self.store).queue(name) {
            queue.wake.now();
        }
    }
}

/// The message as its receiver sees it: only the attributes that were asked for.
fn present(message: Message, handle: String, held: Held, asked: &ReceiveMessageInput) -> Message {
    let mut known = message.attributes;
    known.insert("ApproximateReceiveCount".to_owned(), held.receives.to_string());
    if let Some(group) = held.group {
        known.insert("MessageGroupId".to_owned(), group);
    }
    if let Some(trace) = held.trace {
        known.insert("AWSTraceHeader".to_owned(), trace);
    }
    let names = asked.attribute_names.iter().chain(&asked.message_system_attribute_names);
    let wanted = |name: &str| names.clone().any(|asked| asked == ALL || asked == name);
    known.retain(|name, _| wanted(name));
    let attributes = select(held.attributes, &asked.message_attribute_names);
    Message {
        message_id: message.message_id,
        receipt_handle: Some(handle),
        body: Some(held.body),
        md5_of_body: Some(held.md5),
        md5_of_message_attributes: md5_of_message_attributes(&attributes),
        message_attributes: attributes,
        attributes: known,
    }
}

/// The attributes that `names` asks for: by name, by `prefix.*`, or all of them.
fn select(mut all: HashMap<String, MessageAttributeValue>, names: &[String]) -> HashMap<String, MessageAttributeValue> {
    let wanted = |name: &str| {
        names.iter().any(|asked| asked == ALL || asked == name || asked.strip_suffix(".*").is_some_and(|prefix| name.starts_with(prefix)))
    };
    all.retain(|name, _| wanted(name));
    all
}
