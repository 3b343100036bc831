//! The four queues: their names, order and default visibility.

use std::{fmt, str::FromStr, time::Duration};

/// A queue that runs travel on. The order is that of service: critical first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// What someone is waiting for now; visibility 60 s.
    Critical,
    /// Ordinary work; visibility 120 s.
    Default,
    /// Imports and reports; visibility 15 min.
    Bulk,
    /// Cleaning and routines; visibility 5 min.
    Maintenance,
}

impl Queue {
    /// All queues, critical first.
    pub const ALL: [Queue; 4] = [Queue::Critical, Queue::Default, Queue::Bulk, Queue::Maintenance];

    /// The name in tables, configuration and queue URLs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Queue::Critical => "critical",
            Queue::Default => "default",
            Queue::Bulk => "bulk",
            Queue::Maintenance => "maintenance",
        }
    }

    /// How long SQS hides a message from other consumers after a receive, unless configured otherwise.
    pub const fn default_visibility(self) -> Duration {
        Duration::from_secs(match self {
            Queue::Critical => 60,
            Queue::Default => 120,
            Queue::Bulk => 900,
            Queue::Maintenance => 300,
        })
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Queue {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Queue::ALL
            .into_iter()
            .find(|queue| queue.as_str() == name)
            .ok_or_else(|| format!("there is no queue {name:?}; the queues are critical, default, bulk and maintenance"))
    }
}
