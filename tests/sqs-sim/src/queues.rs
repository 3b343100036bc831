//! Queues: made, changed, described, emptied and removed.
//!
//! The engine limits `MaximumMessageSize` to 256 KiB, so that attribute is kept here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustack_sqs_model::input::{CreateQueueInput, DeleteQueueInput, GetQueueAttributesInput, PurgeQueueInput, SetQueueAttributesInput};
use rustack_sqs_model::output::{
    CreateQueueOutput, DeleteQueueOutput, GetQueueAttributesOutput, PurgeQueueOutput, SetQueueAttributesOutput,
};
use serde_json::Value;

use crate::error::ApiError;
use crate::rules;
use crate::sim::{Sim, name_of_arn, path, queue_name};
use crate::store::{MAX_BYTES, Queue, Redrive, Store};
use crate::sync::lock;
use crate::wake::Wake;

const MAX_SIZE: &str = "MaximumMessageSize";
const VISIBILITY: &str = "VisibilityTimeout";
const WAIT: &str = "ReceiveMessageWaitTimeSeconds";
const REDRIVE: &str = "RedrivePolicy";

/// The attributes that this crate reads before the engine does.
struct Settings {
    max_bytes: Option<usize>,
    visibility: Option<i32>,
    wait: Option<i32>,
    /// Inner `None`: the policy is taken away.
    redrive: Option<Option<Redrive>>,
}

impl Settings {
    /// Checks and takes what is ours out of `attributes`, and brings the redrive policy into the engine's form.
    fn take(attributes: &mut HashMap<String, String>, store: &Store) -> Result<Self, ApiError> {
        let max_bytes = match attributes.remove(MAX_SIZE) {
            None => None,
            Some(text) => match text.parse() {
                Ok(bytes) if (1024..=MAX_BYTES).contains(&bytes) => Some(bytes),
                _ => return Err(invalid_attribute(MAX_SIZE)),
            },
        };
        let visibility = match attributes.get(VISIBILITY) {
            None => None,
            Some(text) => match text.parse() {
                Ok(seconds) if rules::visibility(seconds).is_ok() => Some(seconds),
                _ => return Err(invalid_attribute(VISIBILITY)),
            },
        };
        let redrive = match attributes.get_mut(REDRIVE) {
            None => None,
            Some(text) if text.is_empty() => Some(None),
            Some(text) => {
                let (policy, redrive) = redrive_policy(text, store)?;
                *text = policy;
                Some(Some(redrive))
            }
        };
        Ok(Self { max_bytes, visibility, wait: attributes.get(WAIT).and_then(|text| text.parse().ok()), redrive })
    }
}

/// A redrive policy, as the engine reads it and as we do; AWS takes `maxReceiveCount` as a number or as a string.
fn redrive_policy(text: &str, store: &Store) -> Result<(String, Redrive), ApiError> {
    let refuse = |reason: &str| ApiError::invalid(format!("Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"));
    let malformed = || refuse("Redrive policy is not a valid JSON map.");
    let mut policy: Value = serde_json::from_str(text).map_err(|_| malformed())?;
    let arn = policy["deadLetterTargetArn"].as_str().ok_or_else(malformed)?;
    let target = name_of_arn(arn).filter(|name| store.queues.contains_key(*name));
    let target = target.ok_or_else(|| refuse("Dead letter target does not exist."))?.to_owned();
    let count = match &policy["maxReceiveCount"] {
        Value::String(count) => count.parse().ok(),
        count => count.as_u64().and_then(|count| u32::try_from(count).ok()),
    };
    let max_receives = count
        .filter(|count| (1..=1000).contains(count))
        .ok_or_else(|| refuse("Invalid value for maxReceiveCount: must be between 1 and 1000."))?;
    policy["maxReceiveCount"] = max_receives.into();
    Ok((policy.to_string(), Redrive { target, max_receives }))
}

fn invalid_attribute(name: &str) -> ApiError {
    ApiError::plain("InvalidAttributeValue", format!("Invalid value for the parameter {name}."))
}

impl Sim {
    /// Makes a queue, or finds the one that is there with equal attributes.
    pub(crate) async fn create_queue(&self, mut input: CreateQueueInput) -> Result<CreateQueueOutput, ApiError> {
        rules::queue_name(&input.queue_name)?;
        let settings = Settings::take(&mut input.attributes, &lock(&self.store))?;
        let name = input.queue_name.clone();
        let output = self.engine.create_queue(input).await?;
        let mut store = lock(&self.store);
        if let Some(queue) = store.queues.get(&name) {
            if settings.max_bytes.is_some_and(|bytes| bytes != queue.max_bytes) {
                let message = format!("A queue already exists with the same name and a different value for attribute {MAX_SIZE}");
                return Err(ApiError::plain("QueueAlreadyExists", message));
            }
        } else {
            let queue = Queue {
                max_bytes: settings.max_bytes.unwrap_or(MAX_BYTES),
                visibility: settings.visibility.unwrap_or(30),
                wait: settings.wait.unwrap_or(0),
                wake: Arc::new(Wake::new()),
                redrive: settings.redrive.flatten(),
                ghosts: HashSet::new(),
            };
            store.queues.insert(name, queue);
        }
        Ok(output)
    }

    /// Changes a queue's attributes.
    pub(crate) async fn set_attributes(&self, mut input: SetQueueAttributesInput) -> Result<SetQueueAttributesOutput, ApiError> {
        let name = queue_name(&input.queue_url)?.to_owned();
        let settings = {
            let store = lock(&self.store);
            store.queue(&name)?;
            Settings::take(&mut input.attributes, &store)?
        };
        input.queue_url = path(&name);
        let output = self.engine.set_queue_attributes(input).await?;
        if let Some(queue) = lock(&self.store).queues.get_mut(&name) {
            queue.max_bytes = settings.max_bytes.unwrap_or(queue.max_bytes);
            queue.visibility = settings.visibility.unwrap_or(queue.visibility);
            queue.wait = settings.wait.unwrap_or(queue.wait);
            if let Some(redrive) = settings.redrive {
                queue.redrive = redrive;
            }
        }
        Ok(output)
    }

    /// Describes a queue; without names it tells nothing, as AWS does.
    pub(crate) async fn get_attributes(&self, mut input: GetQueueAttributesInput) -> Result<GetQueueAttributesOutput, ApiError> {
        let name = queue_name(&input.queue_url)?.to_owned();
        let queue = lock(&self.store).queue(&name)?.clone();
        if input.attribute_names.is_empty() {
            return Ok(GetQueueAttributesOutput::default());
        }
        input.queue_url = path(&name);
        let mut output = self.engine.get_queue_attributes(input).await?;
        if let Some(value) = output.attributes.get_mut(MAX_SIZE) {
            *value = queue.max_bytes.to_string();
        }
        if let Some(value) = output.attributes.get_mut("ApproximateNumberOfMessages") {
            let waiting = value.parse::<usize>().unwrap_or(0);
            *value = waiting.saturating_sub(queue.ghosts.len()).to_string();
        }
        Ok(output)
    }

    /// Empties a queue, messages in flight too; once a minute, as AWS allows.
    pub(crate) async fn purge(&self, mut input: PurgeQueueInput) -> Result<PurgeQueueOutput, ApiError> {
        let name = queue_name(&input.queue_url)?.to_owned();
        lock(&self.store).queue(&name)?;
        input.queue_url = path(&name);
        let output = self.engine.purge_queue(input).await?;
        lock(&self.store).purge(&name);
        Ok(output)
    }

    /// Removes a queue and its messages.
    pub(crate) async fn delete_queue(&self, mut input: DeleteQueueInput) -> Result<DeleteQueueOutput, ApiError> {
        let name = queue_name(&input.queue_url)?.to_owned();
        lock(&self.store).queue(&name)?;
        input.queue_url = path(&name);
        let output = self.engine.delete_queue(input).await?;
        let mut store = lock(&self.store);
        store.purge(&name);
        store.queues.remove(&name);
        Ok(output)
    }
}
