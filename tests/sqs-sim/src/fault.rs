//! Fault rules: which calls go wrong, and how.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ApiError;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultMode {
    /// It is served, `delay_ms` late. (Every other mode honours `delay_ms` too.)
    Delay,
    /// It is refused with `status` and `code`, and nothing happens.
    Error,
    /// It is refused with `RequestThrottled`, and nothing happens.
    Throttle,
    /// The connection is reset, and nothing happens.
    DropRequest,
    /// It is served, and the connection is reset before the answer.
    LostAnswer,
    /// It gets no answer as long as the client waits. It is served only with `queued_anyway`.
    NeverAnswer,
    /// The chosen entries of a batch come back in `Failed` with `code`. They are served only with `queued_anyway`.
    FailEntries,
    /// The chosen entries of a batch come back in neither list. They are served only with `queued_anyway`.
    OmitEntries,
    /// The chosen entries of a batch are served and come back in both lists.
    DoubleEntries,
    /// Messages are received without their system attributes.
    OmitAttributes,
}

/// A rule; what is left out matches every call.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The action, such as `SendMessageBatch`.
    #[serde(default)]
    op: Option<String>,
    /// A text in the request, or in the message of a receipt handle in it.
    #[serde(default)]
    body_contains: Option<String>,
    /// A text in the queue's name.
    #[serde(default)]
    queue_contains: Option<String>,
    /// How many matching calls pass unharmed first.
    #[serde(default)]
    skip: u64,
    /// How many calls go wrong; without it, all until `DELETE /_fault`.
    #[serde(default)]
    times: Option<u64>,
    /// How they go wrong.
    pub(crate) mode: FaultMode,
    /// Milliseconds before anything else.
    #[serde(default)]
    pub(crate) delay_ms: u64,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    code: Option<String>,
    /// Whose fault the error says it is; by default the code decides.
    #[serde(default)]
    sender_fault: Option<bool>,
    /// Indexes of the entries that fail; with neither this nor `entry_contains`, all.
    #[serde(default)]
    entries: Vec<usize>,
    /// A text in the entries that fail.
    #[serde(default)]
    entry_contains: Option<String>,
    /// Serve what the caller is told went wrong.
    #[serde(default)]
    pub(crate) queued_anyway: bool,
    /// How many calls went wrong by this rule so far; only shown.
    #[serde(default, skip_deserializing)]
    hits: u64,
}

/// A call, as rules see it.
pub(crate) struct Seen<'a> {
    pub(crate) action: &'a str,
    pub(crate) request: &'a Value,
    /// The texts in which `body_contains` is looked for.
    pub(crate) texts: &'a [String],
}

impl FaultMode {
    /// Whether it is about some entries of a batch.
    fn of_entries(self) -> bool {
        matches!(self, FaultMode::FailEntries | FaultMode::OmitEntries | FaultMode::DoubleEntries)
    }
}

impl Rule {
    fn matches(&self, seen: &Seen<'_>) -> bool {
        let action = self.op.as_deref().is_none_or(|op| op == seen.action);
        let queue = self.queue_contains.as_deref().is_none_or(|text| {
            let url = seen.request["QueueUrl"].as_str().unwrap_or_default();
            url.rsplit('/').next().is_some_and(|name| name.contains(text))
        });
        let body = self.body_contains.as_deref().is_none_or(|text| seen.texts.iter().any(|seen| seen.contains(text)));
        let entries = !self.mode.of_entries() || seen.request["Entries"].as_array().is_none_or(|all| !self.chosen(all).is_empty());
        action && queue && body && entries
    }

    /// The indexes of the entries that fail.
    pub(crate) fn chosen(&self, all: &[Value]) -> Vec<usize> {
        let every = self.entries.is_empty() && self.entry_contains.is_none();
        let contains = |entry: &Value| {
            self.entry_contains.as_deref().is_some_and(|text| {
                entry["MessageBody"].as_str().is_some_and(|body| body.contains(text)) || entry.to_string().contains(text)
            })
        };
        let chosen = all.iter().enumerate().filter(|(index, entry)| every || self.entries.contains(index) || contains(entry));
        chosen.map(|(index, _)| index).collect()
    }

    /// The error that the caller is told.
    pub(crate) fn error(&self) -> ApiError {
        let code = match self.mode {
            FaultMode::Throttle => "RequestThrottled",
            _ => self.code.as_deref().unwrap_or("InternalError"),
        };
        let mut error = ApiError::plain(code, "A fault rule says so.");
        error.status = self.status.unwrap_or(error.status);
        error.sender_fault = self.sender_fault.unwrap_or(error.sender_fault && code != "RequestThrottled");
        error
    }

    /// The mode's name, for the log of calls.
    pub(crate) fn name(&self) -> String {
        serde_json::to_value(self.mode).ok().and_then(|mode| mode.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// The rules in force; the first that matches is the one that acts.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds one rule, or an array of them.
    pub(crate) fn add(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        let value: Value = serde_json::from_slice(json)?;
        if value.is_array() {
            self.rules.append(&mut serde_json::from_value(value)?);
        } else {
            self.rules.push(serde_json::from_value(value)?);
        }
        Ok(())
    }

    /// Takes all away.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// All rules with their hits.
    pub(crate) fn show(&self) -> String {
        serde_json::to_string(&self.rules).unwrap_or_default()
    }

    /// The rule that acts on this call, counted.
    pub(crate) fn strike(&mut self, seen: &Seen<'_>) -> Option<Rule> {
        for rule in &mut self.rules {
            if rule.times == Some(rule.hits) || !rule.matches(seen) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.hits += 1;
            return Some(rule.clone());
        }
        None
    }
}
