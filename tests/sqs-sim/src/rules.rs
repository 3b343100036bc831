//! What AWS refuses, as functions of the request alone.

use std::collections::{HashMap, HashSet};

use rustack_sqs_model::input::ReceiveMessageInput;
use rustack_sqs_model::types::{MessageAttributeValue, MessageSystemAttributeValue, SendMessageBatchRequestEntry};

use crate::error::ApiError;

/// The most entries in a batch, messages in a receive, and attributes of a message.
const TEN: usize = 10;
/// The longest visibility timeout, and the longest in all from a receive: 12 hours.
pub(crate) const MAX_VISIBILITY: i32 = 43_200;

/// A queue's name: 1 to 80 of letters, digits, hyphen and underscore. FIFO queues are not simulated.
pub(crate) fn queue_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name.len() > 80 || !name.chars().all(word) {
        return Err(ApiError::invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."));
    }
    Ok(())
}

/// The entries' ids: 1 to 10, distinct, each of 1 to 80 letters, digits, hyphens and underscores.
pub(crate) fn batch_ids<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), ApiError> {
    let count = ids.len();
    if count == 0 {
        return Err(ApiError::spaced("EmptyBatchRequest", "There should be at least one entry in the request."));
    }
    if count > TEN {
        let message = format!("Maximum number of entries per request are 10. You have sent {count}.");
        return Err(ApiError::spaced("TooManyEntriesInBatchRequest", message));
    }
    let mut seen = HashSet::new();
    for id in ids {
        if id.is_empty() || id.len() > 80 || !id.chars().all(word) {
            let message =
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.";
            return Err(ApiError::spaced("InvalidBatchEntryId", message));
        }
        if !seen.insert(id) {
            return Err(ApiError::spaced("BatchEntryIdsNotDistinct", format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

/// The size of a message: the body, and name, type and value of each attribute.
pub(crate) fn size(body: &str, attributes: &HashMap<String, MessageAttributeValue>) -> usize {
    let attribute = |(name, value): (&String, &MessageAttributeValue)| {
        let text = value.string_value.as_ref().map_or(0, String::len);
        let bytes = value.binary_value.as_ref().map_or(0, Vec::len);
        name.len() + value.data_type.len() + text + bytes
    };
    body.len() + attributes.iter().map(attribute).sum::<usize>()
}

/// A message to send to a standard queue whose messages have at most `max_bytes`.
pub(crate) fn message(entry: &SendMessageBatchRequestEntry, max_bytes: usize) -> Result<(), ApiError> {
    if entry.message_body.is_empty() {
        return Err(ApiError::missing("MessageBody"));
    }
    attributes(&entry.message_attributes)?;
    system_attributes(&entry.message_system_attributes)?;
    if size(&entry.message_body, &entry.message_attributes) > max_bytes {
        let message = format!("One or more parameters are invalid. Reason: Message must be shorter than {max_bytes} bytes.");
        return Err(ApiError::invalid(message));
    }
    characters(&entry.message_body)?;
    if let Some(delay) = entry.delay_seconds {
        range("DelaySeconds", delay, 0, 900)?;
    }
    if let Some(group) = &entry.message_group_id {
        group_id(group)?;
    }
    if entry.message_deduplication_id.is_some() {
        return Err(ApiError::invalid(
            "Value for parameter MessageDeduplicationId is invalid. Reason: The request includes a parameter that is not valid for this queue type.",
        ));
    }
    Ok(())
}

/// The numbers of a receive.
pub(crate) fn receive(input: &ReceiveMessageInput) -> Result<(), ApiError> {
    if let Some(count) = input.max_number_of_messages {
        range("MaxNumberOfMessages", count, 1, 10)?;
    }
    if let Some(wait) = input.wait_time_seconds {
        range("WaitTimeSeconds", wait, 0, 20)?;
    }
    input.visibility_timeout.map_or(Ok(()), visibility)
}

/// A visibility timeout: 0 to 12 hours.
pub(crate) fn visibility(seconds: i32) -> Result<(), ApiError> {
    range("VisibilityTimeout", seconds, 0, MAX_VISIBILITY)
}

fn range(name: &str, value: i32, least: i32, most: i32) -> Result<(), ApiError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let reason = format!("Must be >= {least} and <= {most}, if provided.");
    Err(ApiError::invalid(format!("Value {value} for parameter {name} is invalid. Reason: {reason}")))
}

/// XML's characters, but for the ones XML discourages; the rule for bodies and for string attributes.
fn characters(text: &str) -> Result<(), ApiError> {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..);
    if text.chars().all(allowed) {
        return Ok(());
    }
    let message =
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF";
    Err(ApiError::plain("InvalidMessageContents", message))
}

fn group_id(group: &str) -> Result<(), ApiError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c.is_ascii_punctuation();
    if (1..=128).contains(&group.len()) && group.chars().all(allowed) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "Value {group} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."
    )))
}

fn attributes(all: &HashMap<String, MessageAttributeValue>) -> Result<(), ApiError> {
    if all.len() > TEN {
        let message = format!("Number of message attributes [{}] exceeds the allowed maximum [10].", all.len());
        return Err(ApiError::invalid(message));
    }
    for (name, value) in all {
        attribute_name(name)?;
        let base = value.data_type.split('.').next().unwrap_or_default();
        let filled = match base {
            "String" | "Number" => value.string_value.as_ref().is_some_and(|text| !text.is_empty()),
            "Binary" => value.binary_value.as_ref().is_some_and(|bytes| !bytes.is_empty()),
            _ => {
                let message = format!(
                    "The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is Binary, Number, and String."
                );
                return Err(ApiError::invalid(message));
            }
        };
        if !filled || value.data_type.len() > 256 {
            let message = format!("Message attribute '{name}' must contain a non-empty value of type '{}'.", value.data_type);
            return Err(ApiError::invalid(message));
        }
        if let Some(text) = &value.string_value {
            if base == "Number" && text.parse::<f64>().is_err() {
                return Err(ApiError::invalid(format!("Can't cast the value of message attribute '{name}' to a number.")));
            }
            characters(text)?;
        }
    }
    Ok(())
}

fn attribute_name(name: &str) -> Result<(), ApiError> {
    let lower = name.to_ascii_lowercase();
    let allowed = |c: char| word(c) || c == '.';
    let dots = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    let reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
    if name.is_empty() || name.len() > 256 || dots || reserved || !name.chars().all(allowed) {
        return Err(ApiError::invalid(format!("The message attribute name '{name}' is invalid.")));
    }
    Ok(())
}

fn system_attributes(all: &HashMap<String, MessageSystemAttributeValue>) -> Result<(), ApiError> {
    for (name, value) in all {
        if name != "AWSTraceHeader" {
            return Err(ApiError::invalid(format!("Message system attribute name '{name}' is invalid.")));
        }
        if value.data_type != "String" || value.string_value.as_ref().is_none_or(String::is_empty) {
            return Err(ApiError::invalid("Message system attribute 'AWSTraceHeader' must contain a non-empty String value."));
        }
    }
    Ok(())
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
