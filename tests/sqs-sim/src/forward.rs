//! The forwarding mode: another SQS answers, behind the fault rules and the log of calls of this server.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::api::parse;
use crate::error::{ApiError, JSON};
use crate::sim::{REGION, queue_name};

/// An account that nobody else asks for: several servers can stand in front of one engine that keeps accounts apart.
pub(crate) fn account() -> String {
    format!("{:012}", RandomState::new().hash_one(std::process::id()) % 1_000_000_000_000)
}

/// Passes a call on, in the name of `account`, and its answer back.
pub(crate) async fn call(engine: SocketAddr, account: &str, action: &str, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut request: Value = parse(body)?;
    if let Some(url) = request["QueueUrl"].as_str() {
        request["QueueUrl"] = format!("http://{engine}/{account}/{}", queue_name(url)?).into();
    }
    let answer = exchange(engine, account, action, request.to_string()).await;
    let answer = answer.map_err(|error| ApiError::plain("ServiceUnavailable", format!("{engine} did not answer: {error}")))?;
    if answer.status() == StatusCode::OK { Ok(answer.into_body().into()) } else { Err(refusal(&answer)) }
}

async fn exchange(
    engine: SocketAddr,
    account: &str,
    action: &str,
    body: String,
) -> Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(engine).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let signed = format!("AWS4-HMAC-SHA256 Credential={account}/20260101/{REGION}/sqs/aws4_request, SignedHeaders=host, Signature=0");
    let request = Request::post("/")
        .header(HOST, engine.to_string())
        .header(CONTENT_TYPE, JSON)
        .header("x-amz-target", format!("AmazonSQS.{action}"))
        .header(AUTHORIZATION, signed)
        .body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        hyper::Result::Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    };
    // The connection ends with the caller, so that the engine sees a client that goes away.
    tokio::pin!(exchange, connection);
    tokio::select! {
        answer = &mut exchange => Ok(answer?),
        // What was read before it closed is still to be taken.
        _ = &mut connection => Ok(exchange.await?),
    }
}

/// An error of the engine, as one of ours.
fn refusal(answer: &Response<Bytes>) -> ApiError {
    let told = answer.headers().get("x-amzn-query-error").and_then(|header| header.to_str().ok());
    let (code, fault) = told.and_then(|told| told.split_once(';')).unwrap_or(("InternalError", "Receiver"));
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let message = body["message"].as_str().or(body["Message"].as_str()).unwrap_or_default().to_owned();
    ApiError { status: answer.status().as_u16(), code: code.to_owned(), sender_fault: fault == "Sender", message }
}
