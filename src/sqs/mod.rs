//! SQS: the only user of the AWS types.
//!
//! Every call has a deadline, and errors carry the code and text of AWS, never a message body.

mod letters;
mod queues;

use std::{
    fmt,
    time::{Duration, Instant},
};

use aws_config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_sqs::{
    Client,
    config::retry::RetryPartition,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::{
        ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, MessageAttributeValue, MessageSystemAttributeName,
        SendMessageBatchRequestEntry,
    },
};
use aws_smithy_http_client::tls;

use crate::{config::SqsConfig, error::Error, queue::Queue};

pub(crate) use letters::RawLetter;
pub(crate) use queues::{MAX_RECEIVES, QueueState, Wanted};

/// Most messages in one batch call.
pub(crate) const BATCH_ENTRIES: usize = 10;
/// Most bytes in one batch call, by body and attributes.
pub(crate) const BATCH_BYTES: usize = 256 * 1024;
/// Most bytes of one message, by body and attributes.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// What a message counts as that came without its receive count: the last receive that may return by visibility. So it is started, its
/// next attempt comes by a new message, and the ledger's own counts end it.
const UNCOUNTED_RECEIVES: i32 = 5;
/// Longest time a message can be hidden from its receive on.
pub(crate) const MAX_HIDDEN: Duration = Duration::from_secs(43_200);

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const RECEIVE_MARGIN: Duration = Duration::from_secs(5);

/// A queue, or the dead-letter queue of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Main(Queue),
    DeadLetters(Queue),
}

impl From<Queue> for Target {
    fn from(queue: Queue) -> Target {
        Target::Main(queue)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Main(queue) => write!(f, "{queue}"),
            Target::DeadLetters(queue) => write!(f, "{queue}-dlq"),
        }
    }
}

/// The queues of one environment.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    /// For receives: their own retry budget, so that a failing poll takes none from the others.
    receiver: Client,
    /// For everything else.
    client: Client,
    url_prefix: String,
}

/// A message to send.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    /// For people who look at a dead letter.
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) body: String,
    pub(crate) group: Option<String>,
}

impl Outgoing {
    /// What it counts against the limit of a batch.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.attributes.iter().map(|(name, value)| name.len() + "String".len() + value.len()).sum::<usize>()
    }
}

/// What became of one message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    Taken,
    Refused(String),
}

/// Why a call took nothing.
enum NotTaken {
    /// It says nothing about the messages.
    Call(Error),
    /// A message in it cannot be sent.
    Message(Error),
}

impl From<Error> for NotTaken {
    fn from(error: Error) -> NotTaken {
        NotTaken::Call(error)
    }
}

/// Codes with which a whole call is refused for what is in a message: too large alone, or what only some servers answer by entry.
const MESSAGE_CODES: [&str; 3] = ["BatchRequestTooLong", "InvalidMessageContents", "InvalidParameterValue"];

/// A message in hand.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) body: String,
    pub(crate) receipt: String,
    pub(crate) receives: i32,
}

impl Queues {
    /// Makes the clients; calls nothing yet.
    pub(crate) async fn connect(config: &SqsConfig) -> Queues {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build_https();
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(http)
            .retry_config(RetryConfig::standard().with_max_attempts(1))
            .timeout_config(TimeoutConfig::builder().connect_timeout(Duration::from_secs(3)).operation_timeout(CALL_TIMEOUT).build());
        if let Some(region) = &config.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &config.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if config.local_credentials {
            loader = loader.credentials_provider(aws_credential_types::Credentials::new("local", "local", None, None, "local"));
        }
        let shared = loader.load().await;
        let builder = aws_sdk_sqs::config::Builder::from(&shared);
        Queues {
            receiver: Client::from_conf(builder.clone().retry_partition(RetryPartition::new("receive")).build()),
            client: Client::from_conf(builder.build()),
            url_prefix: config.url_prefix.clone(),
        }
    }

    pub(crate) fn url(&self, target: Target) -> String {
        format!("{}{target}", self.url_prefix)
    }

    /// Sends at most ten messages within the deadline. The answer has one entry a message, in their order: a message that is in
    /// neither list of the answer counts as refused.
    ///
    /// Where SQS refuses the call for what is in a message, each is sent alone, so that it is refused alone.
    pub(crate) async fn send(&self, target: Target, messages: &[Outgoing], deadline: Duration) -> Result<Vec<Sent>, Error> {
        if let [message] = messages
            && message.bytes() > MESSAGE_BYTES
        {
            // Known beforehand: megabytes are not sent in vain, again and again.
            return Ok(vec![Sent::Refused(format!("a message of {} bytes; SQS takes at most {MESSAGE_BYTES}", message.bytes()))]);
        }
        let until = Instant::now() + deadline;
        match self.send_batch(target, messages, deadline).await {
            Ok(sent) => Ok(sent),
            Err(NotTaken::Call(error)) => Err(error),
            Err(NotTaken::Message(error)) if messages.len() == 1 => Ok(vec![Sent::Refused(error.to_string())]),
            Err(NotTaken::Message(_)) => {
                let mut sent = Vec::new();
                for message in messages {
                    let left = until.saturating_duration_since(Instant::now());
                    sent.push(match self.send_batch(target, std::slice::from_ref(message), left).await {
                        Ok(alone) => alone.into_iter().next().unwrap_or_else(|| Sent::Refused("SQS did not name it".to_owned())),
                        Err(NotTaken::Call(error) | NotTaken::Message(error)) => Sent::Refused(error.to_string()),
                    });
                }
                Ok(sent)
            }
        }
    }

    async fn send_batch(&self, target: Target, messages: &[Outgoing], deadline: Duration) -> Result<Vec<Sent>, NotTaken> {
        let mut call = self.client.send_message_batch().queue_url(self.url(target));
        for (index, message) in messages.iter().enumerate() {
            let mut entry = SendMessageBatchRequestEntry::builder()
                .id(index.to_string())
                .message_body(&message.body)
                .set_message_group_id(message.group.clone());
            for (name, value) in &message.attributes {
                entry = entry.message_attributes(*name, text_attribute(value)?);
            }
            call = call.entries(entry.build().map_err(|error| failed("SendMessageBatch", &error))?);
        }
        let timeouts = TimeoutConfig::builder().operation_timeout(deadline).build();
        let answer =
            call.customize().config_override(aws_sdk_sqs::Config::builder().timeout_config(timeouts)).send().await.map_err(|error| {
                let code = error.as_service_error().and_then(|error| error.meta().code()).unwrap_or_default();
                let of_message = MESSAGE_CODES.iter().any(|name| code.ends_with(name));
                let error = sdk("SendMessageBatch", &error);
                if of_message { NotTaken::Message(error) } else { NotTaken::Call(error) }
            })?;
        let mut sent = vec![Sent::Refused("SQS named it in neither list of its answer".to_owned()); messages.len()];
        for entry in answer.failed() {
            if let Some(slot) = entry.id().parse::<usize>().ok().and_then(|index| sent.get_mut(index)) {
                *slot = Sent::Refused(format!("{}: {}", entry.code(), entry.message().unwrap_or("no reason given")));
            }
        }
        for entry in answer.successful() {
            // An entry in both lists was not sent for sure; sending it again is harmless.
            if let Some(slot) = entry.id().parse::<usize>().ok().and_then(|index| sent.get_mut(index))
                && !answer.failed().iter().any(|failed| failed.id() == entry.id())
            {
                *slot = Sent::Taken;
            }
        }
        Ok(sent)
    }

    /// Waits up to `wait` for at most `count` (1 to 10) messages. Never drop this future: messages on their way would stay hidden.
    pub(crate) async fn receive(&self, queue: Queue, count: usize, wait: Duration, visibility: Duration) -> Result<Vec<Message>, Error> {
        let timeouts = TimeoutConfig::builder().connect_timeout(Duration::from_secs(3)).operation_timeout(wait + RECEIVE_MARGIN).build();
        let answer = self
            .receiver
            .receive_message()
            .queue_url(self.url(Target::Main(queue)))
            .max_number_of_messages(count.clamp(1, BATCH_ENTRIES) as i32)
            .wait_time_seconds(wait.as_secs() as i32)
            .visibility_timeout(visibility.as_secs() as i32)
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .customize()
            .config_override(aws_sdk_sqs::Config::builder().timeout_config(timeouts))
            .send()
            .await
            .map_err(|error| sdk("ReceiveMessage", &error))?;
        let mut uncounted = 0;
        let messages = answer.messages.unwrap_or_default().into_iter().filter_map(|message| {
            let receives = message
                .attributes
                .as_ref()
                .and_then(|attributes| attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount))
                .and_then(|count| count.parse().ok());
            uncounted += u32::from(receives.is_none());
            Some(Message {
                body: message.body.unwrap_or_default(),
                receipt: message.receipt_handle?,
                receives: receives.unwrap_or(UNCOUNTED_RECEIVES),
            })
        });
        let messages = messages.collect();
        if uncounted > 0 {
            tracing::error!(%queue, uncounted, "SQS gave no ApproximateReceiveCount with messages: each attempt takes a new message");
        }
        Ok(messages)
    }

    /// Hides messages for so long from now; returns the indexes of those SQS refused, with its reason.
    pub(crate) async fn hide(&self, target: impl Into<Target>, messages: &[(String, Duration)]) -> Result<Vec<(usize, String)>, Error> {
        let mut call = self.client.change_message_visibility_batch().queue_url(self.url(target.into()));
        for (index, (receipt, time)) in messages.iter().enumerate() {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(index.to_string())
                .receipt_handle(receipt)
                .visibility_timeout(time.as_secs_f64().ceil().min(MAX_HIDDEN.as_secs_f64()) as i32);
            call = call.entries(entry.build().map_err(|error| failed("ChangeMessageVisibilityBatch", &error))?);
        }
        let answer = call.send().await.map_err(|error| sdk("ChangeMessageVisibilityBatch", &error))?;
        Ok(answer.failed().iter().filter_map(|entry| Some((entry.id().parse().ok()?, entry.code().to_owned()))).collect())
    }

    /// Deletes messages; returns the indexes of those SQS refused, with its reason.
    pub(crate) async fn delete(&self, target: impl Into<Target>, receipts: &[String]) -> Result<Vec<(usize, String)>, Error> {
        let mut call = self.client.delete_message_batch().queue_url(self.url(target.into()));
        for (index, receipt) in receipts.iter().enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string()).receipt_handle(receipt);
            call = call.entries(entry.build().map_err(|error| failed("DeleteMessageBatch", &error))?);
        }
        let answer = call.send().await.map_err(|error| sdk("DeleteMessageBatch", &error))?;
        Ok(answer.failed().iter().filter_map(|entry| Some((entry.id().parse().ok()?, entry.code().to_owned()))).collect())
    }

    /// Sends a body that no run stands behind to the dead-letter queue: the only message a worker sends itself.
    pub(crate) async fn send_unreadable(&self, queue: Queue, body: &str, code: &str, reason: &str) -> Result<(), Error> {
        let message =
            Outgoing { attributes: vec![("code", code.to_owned()), ("reason", reason.to_owned())], body: body.to_owned(), group: None };
        match self.send(Target::DeadLetters(queue), &[message], CALL_TIMEOUT).await?.pop() {
            Some(Sent::Refused(reason)) => Err(Error::Sqs { action: "SendMessageBatch", text: reason }),
            _ => Ok(()),
        }
    }
}

fn text_attribute(value: &str) -> Result<MessageAttributeValue, Error> {
    MessageAttributeValue::builder().data_type("String").string_value(value).build().map_err(|error| failed("SendMessageBatch", &error))
}

fn failed(action: &'static str, error: &dyn std::error::Error) -> Error {
    Error::Sqs { action, text: error.to_string() }
}

fn sdk<E>(action: &'static str, error: &SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let text = match error {
        SdkError::ServiceError(service) => {
            let meta = service.err().meta();
            format!("{}: {}", meta.code().unwrap_or("error"), meta.message().unwrap_or("no reason given"))
        }
        SdkError::TimeoutError(_) => "no answer in time".to_owned(),
        other => {
            let mut text = DisplayErrorContext(other).to_string();
            if let Some(end) = text.find(" (") {
                text.truncate(end);
            }
            text
        }
    };
    Error::Sqs { action, text }
}
