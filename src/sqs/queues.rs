//! The queues themselves: how they are, how they should be, and how they become so.

use std::{collections::HashMap, time::Duration};

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::{Value, json};

use crate::{config::Visibility, error::Error, queue::Queue};

use super::{Queues, Target, sdk};

/// After so many receives SQS moves a message to the dead-letter queue by itself. Five are ours, the sixth renews the message.
pub(crate) const MAX_RECEIVES: u32 = 7;

/// How a queue should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) visibility: Duration,
    pub(crate) retention: Duration,
}

impl Wanted {
    pub(crate) fn of(target: Target, visibility: &Visibility) -> Wanted {
        let (queue, days) = match target {
            Target::Main(queue) => (queue, 4),
            // A message that SQS moves keeps its age: it must not end there before anybody looked.
            Target::DeadLetters(queue) => (queue, 14),
        };
        Wanted { visibility: visibility.of(queue), retention: Duration::from_secs(days * 86_400) }
    }
}

/// How a queue is.
#[derive(Debug, Clone)]
pub(crate) struct QueueState {
    pub(crate) arn: String,
    pub(crate) visibility: Option<Duration>,
    pub(crate) retention: Option<Duration>,
    /// Most bytes of a message.
    pub(crate) max_bytes: Option<u64>,
    /// ARN of the queue that SQS moves messages to, and after how many receives.
    pub(crate) redrive: Option<(String, u32)>,
    /// Messages that can be received, and those in somebody's hands: about so many.
    pub(crate) visible: u64,
    pub(crate) hidden: u64,
}

impl QueueState {
    fn read(attributes: &HashMap<QueueAttributeName, String>) -> QueueState {
        let number = |name| attributes.get(&name).and_then(|text| text.parse::<u64>().ok());
        let seconds = |name| number(name).map(Duration::from_secs);
        let policy: Option<Value> = attributes.get(&QueueAttributeName::RedrivePolicy).and_then(|text| serde_json::from_str(text).ok());
        let redrive = policy.and_then(|policy| {
            // Some servers write the number as text.
            let receives = policy["maxReceiveCount"].as_u64().or_else(|| policy["maxReceiveCount"].as_str()?.parse().ok())?;
            Some((policy["deadLetterTargetArn"].as_str()?.to_owned(), u32::try_from(receives).ok()?))
        });
        QueueState {
            arn: attributes.get(&QueueAttributeName::QueueArn).cloned().unwrap_or_default(),
            visibility: seconds(QueueAttributeName::VisibilityTimeout),
            retention: seconds(QueueAttributeName::MessageRetentionPeriod),
            max_bytes: number(QueueAttributeName::MaximumMessageSize),
            redrive,
            visible: number(QueueAttributeName::ApproximateNumberOfMessages).unwrap_or(0),
            hidden: number(QueueAttributeName::ApproximateNumberOfMessagesNotVisible).unwrap_or(0),
        }
    }

    fn is(&self, wanted: Wanted, redrive: Option<&str>) -> bool {
        self.visibility == Some(wanted.visibility)
            && self.retention == Some(wanted.retention)
            && redrive.is_none_or(|arn| self.redrive.as_ref().is_some_and(|(found, receives)| found == arn && *receives == MAX_RECEIVES))
    }
}

impl Queues {
    /// How a queue is; `None` where it does not exist, an error where SQS cannot say.
    pub(crate) async fn state(&self, target: Target) -> Result<Option<QueueState>, Error> {
        let call = self.client.get_queue_attributes().queue_url(self.url(target)).attribute_names(QueueAttributeName::All);
        match call.send().await {
            Ok(answer) => Ok(Some(QueueState::read(&answer.attributes.unwrap_or_default()))),
            Err(error) if error.as_service_error().is_some_and(|error| error.is_queue_does_not_exist()) => Ok(None),
            Err(error) => Err(sdk("GetQueueAttributes", &error)),
        }
    }

    /// Makes a queue and its dead-letter queue, or corrects their attributes; returns what was done with each.
    pub(crate) async fn create(&self, queue: Queue, visibility: &Visibility) -> Result<[(Target, &'static str); 2], Error> {
        let (letters, main) = (Target::DeadLetters(queue), Target::Main(queue));
        let made = self.create_one(letters, Wanted::of(letters, visibility), None).await?;
        let arn = self.state(letters).await?.map(|state| state.arn).unwrap_or_default();
        Ok([(letters, made), (main, self.create_one(main, Wanted::of(main, visibility), Some(&arn)).await?)])
    }

    async fn create_one(&self, target: Target, wanted: Wanted, redrive: Option<&str>) -> Result<&'static str, Error> {
        let mut attributes = HashMap::from([
            (QueueAttributeName::VisibilityTimeout, wanted.visibility.as_secs().to_string()),
            (QueueAttributeName::MessageRetentionPeriod, wanted.retention.as_secs().to_string()),
        ]);
        if let Some(arn) = redrive {
            let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": MAX_RECEIVES });
            attributes.insert(QueueAttributeName::RedrivePolicy, policy.to_string());
        }
        let url = self.url(target);
        let Some(found) = self.state(target).await? else {
            let name = url.rsplit('/').next().unwrap_or_default();
            let made = self.client.create_queue().queue_name(name).set_attributes(Some(attributes)).send().await;
            return made.map(|_| "created").map_err(|error| sdk("CreateQueue", &error));
        };
        if found.is(wanted, redrive) {
            return Ok("is right");
        }
        let set = self.client.set_queue_attributes().queue_url(&url).set_attributes(Some(attributes)).send().await;
        set.map(|_| "corrected").map_err(|error| sdk("SetQueueAttributes", &error))
    }
}
