//! A server, an SDK client that does not retry, and queues to try things on.

use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Credentials;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use serde_json::Value;
use sqs_sim::{Options, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A server of the test's own, with a client.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) sqs: Client,
}

/// A server that behaves as AWS does.
pub(crate) async fn world() -> World {
    world_with(Options::default()).await
}

pub(crate) async fn world_with(options: Options) -> World {
    let server = Server::start_with("127.0.0.1:0", options).await.unwrap();
    let sqs = client(&server, RetryConfig::disabled()).await;
    World { server, sqs }
}

/// A client whose attempts end after 2.5 seconds.
pub(crate) async fn client(server: &Server, retries: RetryConfig) -> Client {
    let tls = Provider::Rustls(CryptoMode::Ring);
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_millis(2500)).build();
    let config = aws_config::defaults(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().tls_provider(tls).build_https())
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .region(Region::new("us-east-1"))
        .endpoint_url(server.endpoint())
        .retry_config(retries)
        .timeout_config(timeouts)
        .load()
        .await;
    Client::new(&config)
}

impl World {
    /// Makes a queue with these attributes and returns its URL.
    pub(crate) async fn queue(&self, name: &str, attributes: &[(QueueAttributeName, &str)]) -> String {
        let mut create = self.sqs.create_queue().queue_name(name);
        for (name, value) in attributes {
            create = create.attributes(name.clone(), *value);
        }
        create.send().await.unwrap().queue_url.unwrap()
    }

    pub(crate) async fn send(&self, queue: &str, body: &str) {
        self.sqs.send_message().queue_url(queue).message_body(body).send().await.unwrap();
    }

    /// Receives with a long poll of one second and this visibility timeout.
    pub(crate) async fn receive(&self, queue: &str, visibility: i32) -> Vec<Message> {
        let receive = self.sqs.receive_message().queue_url(queue).max_number_of_messages(10).wait_time_seconds(1);
        let receive = receive.visibility_timeout(visibility).message_system_attribute_names(MessageSystemAttributeName::All);
        receive.send().await.unwrap().messages.unwrap_or_default()
    }

    /// Receives without waiting.
    pub(crate) async fn peek(&self, queue: &str) -> Vec<Message> {
        let receive = self.sqs.receive_message().queue_url(queue).max_number_of_messages(10).send();
        receive.await.unwrap().messages.unwrap_or_default()
    }

    pub(crate) async fn receive_one(&self, queue: &str, visibility: i32) -> Message {
        let mut messages = self.receive(queue, visibility).await;
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0)
    }

    pub(crate) async fn attribute(&self, queue: &str, name: QueueAttributeName) -> String {
        let output = self.sqs.get_queue_attributes().queue_url(queue).attribute_names(name.clone()).send().await.unwrap();
        output.attributes.unwrap().remove(&name).unwrap()
    }

    /// Adds fault rules.
    pub(crate) async fn fault(&self, rules: Value) {
        let answer = self.http("POST", "/_fault", &rules.to_string()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    pub(crate) async fn calls(&self) -> Value {
        let answer = self.http("GET", "/_calls", "").await;
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    /// A request of the test hooks; returns the whole answer.
    pub(crate) async fn http(&self, method: &str, path: &str, body: &str) -> String {
        let address = self.server.endpoint().replace("http://", "");
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// A string attribute.
pub(crate) fn text(value: &str) -> MessageAttributeValue {
    MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap()
}

/// A batch entry.
pub(crate) fn entry(id: &str, body: &str) -> SendMessageBatchRequestEntry {
    SendMessageBatchRequestEntry::builder().id(id).message_body(body).build().unwrap()
}

/// The code of a refused call, without AWS's namespace.
pub(crate) fn code<T: std::fmt::Debug, E: ProvideErrorMetadata>(result: Result<T, SdkError<E>>) -> String {
    match result {
        Ok(output) => panic!("not refused: {output:?}"),
        Err(error) => short(error.code().unwrap_or("no code")),
    }
}

/// A code without AWS's namespace.
pub(crate) fn short(code: &str) -> String {
    code.rsplit("AWS.SimpleQueueService.").next().unwrap().to_owned()
}

pub(crate) fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body().unwrap()).collect()
}

pub(crate) fn handle(message: &Message) -> &str {
    message.receipt_handle().unwrap()
}

pub(crate) fn system(message: &Message, name: MessageSystemAttributeName) -> Option<&str> {
    message.attributes().and_then(|all| all.get(&name)).map(String::as_str)
}
