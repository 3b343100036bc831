//! From an HTTP request to an answer: the action is read, its fault met, and the action served.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Response};
use rustack_sqs_http::dispatch::SqsHandler;
use rustack_sqs_model::operations::SqsOperation as Op;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{ApiError, answer};
use crate::fault::{FaultMode, Rule, Seen};
use crate::forward;
use crate::null;
use crate::sim::{Mode, Sim};
use crate::sync::lock;

/// How a call ends. A call that never ends is a future that never does.
pub(crate) enum Ending {
    /// With this answer.
    Answer(Response<Full<Bytes>>),
    /// With a reset of the connection.
    Reset,
}

/// Reads a request.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| match error.to_string() {
        text if text.contains("missing field") => ApiError::plain("MissingParameter", text),
        text => ApiError::plain("SerializationException", text),
    })
}

/// Writes an answer.
pub(crate) fn json(output: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(output).map_err(|error| ApiError::plain("InternalError", error.to_string()))
}

/// Answers an AWS call.
pub(crate) async fn call(sim: &Arc<Sim>, headers: &HeaderMap, body: Bytes) -> Ending {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let action = target.strip_prefix("AmazonSQS.").unwrap_or_default();
    let Some(operation) = Op::from_name(action) else {
        return Ending::Answer(
            ApiError::plain("InvalidAction", format!("The action {target} is not valid for this endpoint.")).into_response(),
        );
    };
    let fault = strike(sim, action, &body);
    lock(&sim.calls).record(action, &body, fault.as_ref().map(Rule::name));
    match fault {
        None => Ending::Answer(respond(serve(sim, operation, &body).await)),
        Some(rule) => suffer(sim, &rule, operation, &body).await,
    }
}

/// The fault rule that this call meets.
fn strike(sim: &Sim, action: &str, body: &[u8]) -> Option<Rule> {
    if lock(&sim.faults).is_empty() {
        return None;
    }
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let texts = texts(sim, &request);
    lock(&sim.faults).strike(&Seen { action, request: &request, texts: &texts })
}

/// The request's text, its message bodies, and the bodies behind its receipt handles.
fn texts(sim: &Sim, request: &Value) -> Vec<String> {
    let mut texts = vec![request.to_string()];
    let queue = request["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
    let entries = request["Entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let store = lock(&sim.store);
    for part in entries.iter().chain([request]) {
        texts.extend(part["MessageBody"].as_str().map(str::to_owned));
        let handle = part["ReceiptHandle"].as_str().and_then(|handle| store.handle(queue, handle).ok());
        texts.extend(handle.and_then(|handle| store.messages.get(&handle.token)).map(|held| held.body.clone()));
    }
    texts
}

/// Serves a call as the rule wants it to go wrong.
async fn suffer(sim: &Arc<Sim>, rule: &Rule, operation: Op, body: &Bytes) -> Ending {
    if rule.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(rule.delay_ms)).await;
    }
    match rule.mode {
        FaultMode::Delay => Ending::Answer(respond(serve(sim, operation, body).await)),
        FaultMode::Error | FaultMode::Throttle => Ending::Answer(rule.error().into_response()),
        FaultMode::DropRequest => Ending::Reset,
        FaultMode::LostAnswer => {
            // The answer is what gets lost.
            let _ = serve(sim, operation, body).await;
            Ending::Reset
        }
        FaultMode::NeverAnswer => {
            if rule.queued_anyway {
                let _ = serve(sim, operation, body).await;
            }
            pending().await
        }
        FaultMode::OmitAttributes => Ending::Answer(respond(omit_attributes(sim, operation, body).await)),
        FaultMode::FailEntries | FaultMode::OmitEntries | FaultMode::DoubleEntries => {
            Ending::Answer(respond(fail_entries(sim, rule, operation, body).await))
        }
    }
}

/// Serves a receive, and takes the system attributes out of its answer.
async fn omit_attributes(sim: &Arc<Sim>, operation: Op, body: &Bytes) -> Result<Vec<u8>, ApiError> {
    let mut output: Value = parse(&serve(sim, operation, body).await?)?;
    for message in output["Messages"].as_array_mut().into_iter().flatten() {
        message.as_object_mut().map(|message| message.remove("Attributes"));
    }
    json(&output)
}

/// Serves a batch without the chosen entries, or with them, and reports them as failed, not at all, or as both.
async fn fail_entries(sim: &Arc<Sim>, rule: &Rule, operation: Op, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut request: Value = parse(body)?;
    let Some(all) = request["Entries"].as_array().cloned() else {
        return Err(rule.error());
    };
    let chosen = rule.chosen(&all);
    let failing = |index: usize| chosen.contains(&index);
    let both = rule.mode == FaultMode::DoubleEntries;
    if !rule.queued_anyway && !both {
        let served = all.iter().enumerate().filter(|(index, _)| !failing(*index));
        request["Entries"] = served.map(|(_, entry)| entry.clone()).collect();
    }
    let mut output = match request["Entries"].as_array() {
        Some(served) if served.is_empty() => json!({}),
        _ => parse(&serve(sim, operation, &json(&request)?.into()).await?)?,
    };
    let ids: Vec<_> = chosen.iter().filter_map(|index| all[*index]["Id"].as_str()).collect();
    let list = |name: &str| output[name].as_array().cloned().unwrap_or_default().into_iter();
    let successful = list("Successful").filter(|entry| both || !entry["Id"].as_str().is_some_and(|id| ids.contains(&id)));
    let told = if rule.mode == FaultMode::OmitEntries { &[] } else { ids.as_slice() };
    let failed = told.iter().map(|id| json!(rule.error().entry((*id).to_owned())));
    let (successful, failed): (Value, Value) = (successful.collect(), list("Failed").chain(failed).collect());
    output = json!({ "Successful": successful, "Failed": failed });
    json(&output)
}

fn respond(result: Result<Vec<u8>, ApiError>) -> Response<Full<Bytes>> {
    result.map_or_else(ApiError::into_response, answer)
}

/// Serves an action. Only a receive ends with its caller; everything else is done once it has begun.
async fn serve(sim: &Arc<Sim>, operation: Op, body: &Bytes) -> Result<Vec<u8>, ApiError> {
    if let Mode::Null(latency) = sim.options.mode
        && let Some(answer) = null::serve(operation, body, latency).await
    {
        return answer;
    }
    if let Mode::Forward(engine) = sim.options.mode {
        return forward::call(engine, &sim.account, operation.as_str(), body).await;
    }
    if operation == Op::ReceiveMessage {
        return json(&sim.receive(parse(body)?).await?);
    }
    let (sim, body) = (Arc::clone(sim), body.clone());
    let done = tokio::spawn(async move { act(&sim, operation, &body).await }).await;
    done.unwrap_or_else(|error| Err(ApiError::plain("InternalError", error.to_string())))
}

async fn act(sim: &Arc<Sim>, operation: Op, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    match operation {
        Op::CreateQueue => json(&sim.create_queue(parse(body)?).await?),
        Op::DeleteQueue => json(&sim.delete_queue(parse(body)?).await?),
        Op::GetQueueAttributes => json(&sim.get_attributes(parse(body)?).await?),
        Op::SetQueueAttributes => json(&sim.set_attributes(parse(body)?).await?),
        Op::PurgeQueue => json(&sim.purge(parse(body)?).await?),
        Op::SendMessage => json(&sim.send(parse(body)?).await?),
        Op::SendMessageBatch => json(&sim.send_batch(parse(body)?).await?),
        Op::DeleteMessage => {
            let input: rustack_sqs_model::input::DeleteMessageInput = parse(body)?;
            sim.delete(&input.queue_url, &input.receipt_handle).await.map(|()| b"{}".to_vec())
        }
        Op::DeleteMessageBatch => json(&sim.delete_batch(parse(body)?).await?),
        Op::ChangeMessageVisibility => {
            let input: rustack_sqs_model::input::ChangeMessageVisibilityInput = parse(body)?;
            let changed = sim.change_visibility(&input.queue_url, &input.receipt_handle, input.visibility_timeout).await;
            changed.map(|()| b"{}".to_vec())
        }
        Op::ChangeMessageVisibilityBatch => json(&sim.change_visibility_batch(parse(body)?).await?),
        Op::StartMessageMoveTask => json(&sim.start_move(parse(body)?).await?),
        Op::CancelMessageMoveTask => json(&sim.cancel_move(&parse(body)?)?),
        Op::ListMessageMoveTasks => json(&sim.list_moves(&parse(body)?)),
        Op::ListDeadLetterSourceQueues => {
            // Alone among the lists it is spelled with a small letter.
            let listed = sim.engine.list_dead_letter_source_queues(parse(body)?).await?;
            json(&json!({ "queueUrls": listed.queue_urls }))
        }
        other => engine(sim, other, body).await,
    }
}

/// The actions without rules of ours: names, lists, tags, permissions.
async fn engine(sim: &Sim, operation: Op, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let response = sim.engine_api.handle_operation(operation, Bytes::copy_from_slice(body)).await?;
    let body = response.into_body().collect().await;
    body.map(|body| body.to_bytes().to_vec()).map_err(|error| ApiError::plain("InternalError", error.to_string()))
}
