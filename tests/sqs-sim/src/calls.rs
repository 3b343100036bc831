//! What the server was asked: counters for each action, and the latest calls.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// How many calls the log keeps.
const LOG: usize = 10_000;

/// The counters and the log, as `GET /_calls` shows them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Calls {
    /// Calls, by action.
    counts: BTreeMap<String, u64>,
    /// Messages or handles in those calls, by action.
    entries: BTreeMap<String, u64>,
    /// The latest calls, oldest first; a call is here as soon as it arrives.
    calls: VecDeque<Call>,
}

/// A call.
#[derive(Debug, Serialize)]
struct Call {
    action: String,
    /// The queue's name, where the call names a queue.
    queue: Option<String>,
    /// Messages or handles in it.
    entries: usize,
    /// Milliseconds since 1970.
    at_ms: u64,
    /// `MaxNumberOfMessages` of a receive.
    max: Option<i64>,
    /// `WaitTimeSeconds` of a receive.
    wait: Option<i64>,
    /// The fault it met.
    fault: Option<String>,
}

/// The parts of a request that the log shows.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Shown {
    queue_url: Option<String>,
    queue_name: Option<String>,
    entries: Option<Vec<IgnoredAny>>,
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
}

impl Calls {
    /// Counts and logs a call.
    pub(crate) fn record(&mut self, action: &str, body: &[u8], fault: Option<String>) {
        let shown: Shown = serde_json::from_slice(body).unwrap_or_default();
        let single = matches!(action, "SendMessage" | "DeleteMessage" | "ChangeMessageVisibility");
        let entries = shown.entries.map_or(usize::from(single), |entries| entries.len());
        let named = shown.queue_url.as_deref().and_then(|url| url.rsplit('/').next()).map(str::to_owned);
        *self.counts.entry(action.to_owned()).or_default() += 1;
        *self.entries.entry(action.to_owned()).or_default() += u64::try_from(entries).unwrap_or(0);
        if self.calls.len() == LOG {
            self.calls.pop_front();
        }
        self.calls.push_back(Call {
            action: action.to_owned(),
            queue: named.or(shown.queue_name),
            entries,
            at_ms: now_ms(),
            max: shown.max_number_of_messages,
            wait: shown.wait_time_seconds,
            fault,
        });
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
