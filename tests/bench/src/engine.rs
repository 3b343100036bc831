//! How long the SQS engine takes from a send to the answer of a long poll that was waiting for it.

use std::time::{Duration, Instant};

use aws_sdk_sqs::{Client, config};

use crate::{Result, measurements, rest, variable};

pub(crate) async fn measure() -> Result<Vec<f64>> {
    let client = client(&variable("MONALISA_SQS_ENDPOINT")?);
    let made = client.create_queue().queue_name("bench-engine").send().await?;
    let url = made.queue_url.ok_or("the queue has no URL")?;
    client.purge_queue().queue_url(&url).send().await?;
    let mut times = Vec::new();
    for _ in 0..measurements() {
        let receiving = tokio::spawn(receive(client.clone(), url.clone()));
        rest().await;
        let sent = Instant::now();
        client.send_message().queue_url(&url).message_body("{}").send().await?;
        let (received, receipt) = receiving.await??;
        times.push(received.duration_since(sent).as_secs_f64() * 1_000.0);
        client.delete_message().queue_url(&url).receipt_handle(receipt).send().await?;
    }
    client.delete_queue().queue_url(&url).send().await?;
    Ok(times)
}

async fn receive(client: Client, url: String) -> Result<(Instant, String)> {
    let answer = client.receive_message().queue_url(url).wait_time_seconds(20).send().await?;
    let received = Instant::now();
    let message = answer.messages.and_then(|messages| messages.into_iter().next()).ok_or("nothing was received in 20 s")?;
    Ok((received, message.receipt_handle.ok_or("the message has no handle")?))
}

fn client(endpoint: &str) -> Client {
    let timeouts = config::timeout::TimeoutConfig::builder().operation_timeout(Duration::from_secs(30)).build();
    let config = config::Config::builder()
        .behavior_version(config::BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .timeout_config(timeouts)
        .region(config::Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(aws_credential_types::Credentials::new("local", "local", None, None, "bench"))
        .build();
    Client::from_conf(config)
}
