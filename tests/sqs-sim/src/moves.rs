//! Message move tasks: the queue's own redrive from a dead-letter queue.
//!
//! A moved message is a new one: new id, new receive count. Without a destination each message goes back to the queue it
//! was dead-lettered from; a message that was sent to the dead-letter queue by a client has none, and the task fails.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustack_sqs_model::input::{
    CancelMessageMoveTaskInput, ChangeMessageVisibilityInput, DeleteMessageInput, ListDeadLetterSourceQueuesInput,
    ListMessageMoveTasksInput, ReceiveMessageInput, StartMessageMoveTaskInput,
};
use rustack_sqs_model::output::{CancelMessageMoveTaskOutput, ListMessageMoveTasksOutput, StartMessageMoveTaskOutput};
use rustack_sqs_model::types::{ListMessageMoveTasksResultEntry as Task, Message, SendMessageBatchRequestEntry};

use crate::error::ApiError;
use crate::rules::MAX_VISIBILITY;
use crate::sim::{Sim, name_of_arn, path};
use crate::store::MAX_BYTES;
use crate::sync::lock;

/// The newest task first.
#[derive(Debug, Default)]
pub(crate) struct MoveTasks {
    tasks: Mutex<Vec<Task>>,
}

impl MoveTasks {
    fn update(&self, handle: &str, change: impl FnOnce(&mut Task)) {
        if let Some(task) = lock(&self.tasks).iter_mut().find(|task| task.task_handle.as_deref() == Some(handle)) {
            change(task);
        }
    }

    fn status(&self, handle: &str) -> String {
        let tasks = lock(&self.tasks);
        let task = tasks.iter().find(|task| task.task_handle.as_deref() == Some(handle));
        task.and_then(|task| task.status.clone()).unwrap_or_default()
    }
}

fn not_found(message: &str) -> ApiError {
    ApiError::plain("ResourceNotFoundException", message)
}

impl Sim {
    /// Starts a task. The source must be the dead-letter queue of some queue, and have no other task running.
    pub(crate) async fn start_move(self: &Arc<Self>, input: StartMessageMoveTaskInput) -> Result<StartMessageMoveTaskOutput, ApiError> {
        let missing = || not_found("The resource that you specified for the SourceArn parameter doesn't exist.");
        let source = name_of_arn(&input.source_arn).ok_or_else(missing)?.to_owned();
        lock(&self.store).queue(&source).map_err(|_| missing())?;
        let sources = ListDeadLetterSourceQueuesInput { queue_url: path(&source), ..Default::default() };
        if self.engine.list_dead_letter_source_queues(sources).await?.queue_urls.is_empty() {
            return Err(ApiError::invalid("Source queue must be configured as a Dead Letter Queue."));
        }
        let destination = match input.destination_arn.as_deref() {
            None => None,
            Some(arn) => {
                let name = name_of_arn(arn).filter(|name| lock(&self.store).queues.contains_key(*name));
                Some(
                    name.ok_or_else(|| not_found("The resource that you specified for the DestinationArn parameter doesn't exist."))?
                        .to_owned(),
                )
            }
        };
        let mut tasks = lock(&self.moves.tasks);
        let running = |task: &Task| task.source_arn.as_ref() == Some(&input.source_arn) && task.status.as_deref() == Some("RUNNING");
        if tasks.iter().any(running) {
            return Err(ApiError::spaced(
                "UnsupportedOperation",
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
            ));
        }
        let handle = format!("move-{}", tasks.len() + 1);
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let pace = input.max_number_of_messages_per_second;
        tasks.insert(
            0,
            Task {
                task_handle: Some(handle.clone()),
                source_arn: Some(input.source_arn),
                destination_arn: input.destination_arn,
                max_number_of_messages_per_second: pace,
                approximate_number_of_messages_moved: Some(0),
                status: Some("RUNNING".to_owned()),
                started_timestamp: i64::try_from(started.as_millis()).ok(),
                ..Task::default()
            },
        );
        drop(tasks);
        let (sim, task) = (Arc::clone(self), handle.clone());
        tokio::spawn(async move { sim.run_move(&task, &source, destination.as_deref(), pace).await });
        Ok(StartMessageMoveTaskOutput { task_handle: Some(handle) })
    }

    async fn run_move(&self, task: &str, source: &str, destination: Option<&str>, pace: Option<i32>) {
        while self.moves.status(task) == "RUNNING" {
            match self.move_one(source, destination).await {
                Ok(true) => self.moves.update(task, |task| {
                    task.approximate_number_of_messages_moved = task.approximate_number_of_messages_moved.map(|moved| moved + 1);
                }),
                Ok(false) => self.moves.update(task, |task| task.status = Some("COMPLETED".to_owned())),
                Err(reason) => self.moves.update(task, |task| {
                    task.status = Some("FAILED".to_owned());
                    task.failure_reason = Some(reason);
                }),
            }
            if let Some(pace) = pace.and_then(|pace| u32::try_from(pace).ok()).filter(|pace| *pace > 0) {
                tokio::time::sleep(Duration::from_secs(1) / pace).await;
            }
        }
    }

    /// Moves the next message; `false` when there is none.
    async fn move_one(&self, source: &str, destination: Option<&str>) -> Result<bool, String> {
        let input = ReceiveMessageInput {
            queue_url: path(source),
            visibility_timeout: Some(MAX_VISIBILITY),
            message_system_attribute_names: vec!["All".to_owned()],
            ..ReceiveMessageInput::default()
        };
        let received = self.engine.receive_message(input).await.map_err(|error| error.message)?;
        let Some(message) = received.messages.into_iter().next() else {
            return Ok(false);
        };
        let handle = message.receipt_handle.clone().unwrap_or_default();
        let moved = self.copy(&message, destination).await;
        let queue_url = path(source);
        if moved.is_ok() {
            self.engine.delete_message(DeleteMessageInput { queue_url, receipt_handle: handle }).await.map(drop)
        } else {
            let back = ChangeMessageVisibilityInput { queue_url, receipt_handle: handle, visibility_timeout: 0 };
            self.engine.change_message_visibility(back).await.map(drop)
        }
        .map_err(|error| error.message)?;
        moved.map(|()| true)
    }

    /// Sends the message behind the engine's `message` anew, to the destination or where it came from.
    async fn copy(&self, message: &Message, destination: Option<&str>) -> Result<(), String> {
        let origin = || message.attributes.get("DeadLetterQueueSourceArn").and_then(|arn| name_of_arn(arn));
        let target = destination.or_else(origin).ok_or("CouldNotDetermineMessageSource")?;
        let token: u64 = message.body.as_deref().and_then(|body| body.parse().ok()).unwrap_or(0);
        let held = lock(&self.store).messages.get(&token).cloned();
        let Some(held) = held else { return Ok(()) };
        let entry = SendMessageBatchRequestEntry {
            message_body: held.body,
            message_attributes: held.attributes,
            message_group_id: held.group,
            ..SendMessageBatchRequestEntry::default()
        };
        self.queue_up(target, MAX_BYTES, entry).await.map_err(|error| error.message)?;
        lock(&self.store).messages.remove(&token);
        Ok(())
    }

    /// Stops a running task; what it moved stays moved.
    pub(crate) fn cancel_move(&self, input: &CancelMessageMoveTaskInput) -> Result<CancelMessageMoveTaskOutput, ApiError> {
        if self.moves.status(&input.task_handle) != "RUNNING" {
            return Err(not_found("Only active tasks can be cancelled."));
        }
        let mut moved = None;
        self.moves.update(&input.task_handle, |task| {
            task.status = Some("CANCELLED".to_owned());
            moved = task.approximate_number_of_messages_moved;
        });
        Ok(CancelMessageMoveTaskOutput { approximate_number_of_messages_moved: moved })
    }

    /// The tasks of a source, newest first; only a running one shows its handle.
    pub(crate) fn list_moves(&self, input: &ListMessageMoveTasksInput) -> ListMessageMoveTasksOutput {
        let most = input.max_results.and_then(|most| usize::try_from(most).ok()).unwrap_or(1);
        let tasks = lock(&self.moves.tasks);
        let of_source = tasks.iter().filter(|task| task.source_arn.as_ref() == Some(&input.source_arn)).take(most);
        let shown = of_source.cloned().map(|mut task| {
            if task.status.as_deref() != Some("RUNNING") {
                task.task_handle = None;
            }
            task
        });
        ListMessageMoveTasksOutput { results: shown.collect() }
    }
}
