//! The catalogue: `tasks.json`, generated from the units of a program, and its copy in the database, which decides.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio_postgres::GenericClient;

#[cfg(feature = "workers")]
use crate::unit::{Kind, Units};
use crate::{error::Error, payload::Task, sql};

/// What can be dispatched, and who subscribes to which event. What a file leaves out is what the database takes then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// Version of this form.
    #[serde(default = "first")]
    pub version: u32,
    /// Every task.
    pub tasks: Vec<TaskEntry>,
    /// Every subscription.
    pub subscriptions: Vec<Subscription>,
}

/// A task of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEntry {
    /// Name of the task.
    pub name: String,
    /// Queue its runs travel on.
    pub queue: String,
    /// `tenant`, `platform` or `system`.
    #[serde(default = "tenant")]
    pub context: String,
    /// `skip` or `allow`.
    #[serde(default = "skip")]
    pub overlap: String,
    /// How long one attempt may take.
    #[serde(default = "minute")]
    pub timeout_seconds: u32,
    /// `rate(...)` or `cron(...)`, where it has a schedule.
    pub schedule: Option<String>,
    /// IANA name of the time zone of its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `monalisa` for what ships; nothing for a program's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// A subscription of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Name of the subscriber.
    pub name: String,
    /// Queue its runs travel on.
    pub queue: String,
    /// `tenant`, `platform` or `system`.
    #[serde(default = "tenant")]
    pub context: String,
    /// How long one attempt may take.
    #[serde(default = "minute")]
    pub timeout_seconds: u32,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Version of the event.
    #[serde(default = "first")]
    pub version: i32,
    /// `monalisa` for what ships; nothing for a program's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

fn first<T: From<u8>>() -> T {
    1.into()
}

fn tenant() -> String {
    "tenant".to_owned()
}

fn skip() -> String {
    "skip".to_owned()
}

fn minute() -> u32 {
    60
}

impl Catalogue {
    /// The catalogue of these units, in the order of their names.
    #[cfg(feature = "workers")]
    pub fn of(units: &Units) -> Catalogue {
        let mut catalogue = Catalogue { version: 1, tasks: Vec::new(), subscriptions: Vec::new() };
        for unit in units.iter() {
            let service = unit.ships().then(|| "monalisa".to_owned());
            match unit.kind {
                Kind::Task => catalogue.tasks.push(TaskEntry {
                    name: unit.name.to_owned(),
                    queue: unit.queue.to_owned(),
                    context: unit.context.to_owned(),
                    overlap: unit.overlap.to_owned(),
                    timeout_seconds: unit.timeout_seconds,
                    schedule: (!unit.schedule.is_empty()).then(|| unit.schedule.to_owned()),
                    timezone: (!unit.schedule.is_empty())
                        .then(|| if unit.schedule_timezone.is_empty() { "UTC".to_owned() } else { unit.schedule_timezone.to_owned() }),
                    service,
                }),
                Kind::Subscriber { event, version } => catalogue.subscriptions.push(Subscription {
                    name: unit.name.to_owned(),
                    queue: unit.queue.to_owned(),
                    context: unit.context.to_owned(),
                    timeout_seconds: unit.timeout_seconds,
                    event_type: event.to_owned(),
                    version,
                    service,
                }),
            }
        }
        catalogue
    }

    /// The names of all tasks and subscribers.
    #[cfg(feature = "workers")]
    pub(crate) fn units(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().map(|task| &*task.name).chain(self.subscriptions.iter().map(|subscription| &*subscription.name))
    }

    /// As `tasks.json` holds it.
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string_pretty(self).map_err(|error| Error::Other(format!("the catalogue cannot be written: {error}")))
    }

    /// Loads the file that `MONALISA_TASKS_CATALOG` names. An API does this at boot and does not start without it.
    pub fn from_environment() -> Result<Catalogue, Error> {
        let path = std::env::var_os("MONALISA_TASKS_CATALOG").filter(|path| !path.is_empty()).ok_or_else(|| {
            Error::Config("MONALISA_TASKS_CATALOG is not set: the path of tasks.json, which workers tasks generate writes".to_owned())
        })?;
        Catalogue::from_file(Path::new(&path))
    }

    /// Loads a file.
    pub fn from_file(path: &Path) -> Result<Catalogue, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::Config(format!("the catalogue {} cannot be read: {error}; write it with workers tasks generate", path.display()))
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::Config(format!("the catalogue {} is not valid: {error}; write it with workers tasks generate", path.display()))
        })
    }

    /// Checks that it holds a task the API dispatches; call it once for each at boot.
    pub fn require<T: Task>(&self) -> Result<&Catalogue, Error> {
        if self.tasks.iter().any(|task| task.name == T::NAME) {
            return Ok(self);
        }
        Err(Error::Config(format!(
            "the catalogue holds no task {}: deploy the workers that have it, and their tasks.json, before the API",
            T::NAME
        )))
    }

    /// Compares it with what the database holds and warns where it differs; true where it is the same.
    pub async fn compare(&self, client: &impl GenericClient) -> Result<bool, Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::Other(error.to_string()))?;
        let read = async {
            let row = client.query_one(sql::catalogue::MATCHES.text, &[/* catalogue */ &text]).await?;
            Ok((row.try_get::<_, bool>("loaded")?, row.try_get::<_, bool>("same")?))
        };
        let (loaded, same) = read.await.map_err(Error::postgres(sql::catalogue::MATCHES.name))?;
        if !loaded {
            tracing::warn!("the database holds no catalogue yet: run workers migrate");
        } else if !same {
            tracing::warn!("the catalogue of this process differs from the one in the database, which decides: deploy the workers first");
        }
        Ok(same)
    }
}
