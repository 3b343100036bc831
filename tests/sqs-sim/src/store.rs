//! What the engine does not hold: the messages themselves, and who received them last.
//!
//! The engine's queues hold tokens (it limits a body to 256 KiB and knows no message group on a standard queue). The
//! message behind a token, its receive count and its latest receipt handle stay here.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustack_sqs_model::types::MessageAttributeValue;

use crate::error::ApiError;
use crate::wake::Wake;

/// The largest message, and the largest batch: 1 MiB.
pub(crate) const MAX_BYTES: usize = 1_048_576;

/// What this crate knows of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// `MaximumMessageSize` in bytes.
    pub(crate) max_bytes: usize,
    /// `VisibilityTimeout` in seconds.
    pub(crate) visibility: i32,
    /// `ReceiveMessageWaitTimeSeconds`.
    pub(crate) wait: i32,
    /// Wakes the long polls.
    pub(crate) wake: Arc<Wake>,
    pub(crate) redrive: Option<Redrive>,
    /// Tokens that still wait in the engine though their message was deleted after its visibility timeout.
    pub(crate) ghosts: HashSet<u64>,
}

/// A queue's redrive policy.
#[derive(Clone, Debug)]
pub(crate) struct Redrive {
    /// The dead-letter queue's name.
    pub(crate) target: String,
    /// `maxReceiveCount`.
    pub(crate) max_receives: u32,
}

/// A message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pub(crate) queue: String,
    pub(crate) body: String,
    pub(crate) md5: String,
    pub(crate) attributes: HashMap<String, MessageAttributeValue>,
    pub(crate) group: Option<String>,
    pub(crate) trace: Option<String>,
    /// How often it was received, in all queues it was moved through.
    pub(crate) receives: u32,
    /// Its latest receive.
    pub(crate) lease: Option<Lease>,
}

/// A receive of a message.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// The engine's handle.
    pub(crate) engine_handle: String,
    pub(crate) received_at: Instant,
    pub(crate) visible_at: Instant,
}

/// What a receipt handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The message.
    pub(crate) token: u64,
    /// Which of its receives.
    pub(crate) receive: u32,
}

/// All queues and messages.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) queues: HashMap<String, Queue>,
    pub(crate) messages: HashMap<u64, Held>,
    next_token: u64,
    /// Marks the handles of this process, so that those of an earlier one are recognised as foreign.
    mark: String,
}

impl Store {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self {
            queues: HashMap::new(),
            messages: HashMap::new(),
            next_token: 1,
            mark: format!("{:016x}", RandomState::new().build_hasher().finish()),
        }
    }

    /// The queue, which must exist.
    pub(crate) fn queue(&self, name: &str) -> Result<&Queue, ApiError> {
        self.queues.get(name).ok_or_else(ApiError::no_queue)
    }

    /// Keeps a message and returns its token.
    pub(crate) fn hold(&mut self, message: Held) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.messages.insert(token, message);
        token
    }

    /// Records that `queue` delivered the message; returns its handle and a copy, or nothing when it was deleted.
    pub(crate) fn receive(&mut self, queue: &str, token: u64, engine_handle: &str, visibility: i32) -> Option<(String, Held)> {
        let now = Instant::now();
        let Some(held) = self.messages.get_mut(&token) else {
            // Wherever it was deleted: the engine may have moved it to a dead-letter queue since.
            for queue in self.queues.values_mut() {
                queue.ghosts.remove(&token);
            }
            return None;
        };
        queue.clone_into(&mut held.queue);
        held.receives += 1;
        let visible_at = now + Duration::from_secs(u64::try_from(visibility).unwrap_or(0));
        held.lease = Some(Lease { engine_handle: engine_handle.to_owned(), received_at: now, visible_at });
        if let Some(queue) = self.queues.get(queue) {
            queue.wake.at(visible_at);
        }
        let handle = format!("{}.{queue}.{token}.{}", self.mark, held.receives);
        Some((handle, held.clone()))
    }

    /// Reads a handle which `queue` must have given out.
    pub(crate) fn handle(&self, queue: &str, handle: &str) -> Result<Handle, ApiError> {
        let mut parts = handle.split('.');
        let (mark, name) = (parts.next(), parts.next());
        let token = parts.next().and_then(|part| part.parse().ok());
        let receive = parts.next().and_then(|part| part.parse().ok());
        match (token, receive, parts.next()) {
            (Some(token), Some(receive), None) if mark == Some(&self.mark) && name == Some(queue) => Ok(Handle { token, receive }),
            _ => Err(ApiError::bad_handle(handle)),
        }
    }

    /// The message of a handle, while that handle is its latest.
    pub(crate) fn latest(&mut self, handle: Handle) -> Option<&mut Held> {
        self.messages.get_mut(&handle.token).filter(|held| held.receives == handle.receive)
    }

    /// Forgets every message of a queue, but for those that may stand in its dead-letter queue by now.
    pub(crate) fn purge(&mut self, name: &str) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.ghosts.clear();
        let limit = queue.redrive.as_ref().map_or(u32::MAX, |redrive| redrive.max_receives);
        self.messages.retain(|_, held| held.queue != name || held.receives >= limit);
    }
}
