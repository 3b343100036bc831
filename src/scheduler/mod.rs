//! Fires what is due of the schedules that the database holds. What time it is, what was fired and whether an earlier run is unfinished,
//! PostgreSQL says: any number of these may run side by side, be killed and have wrong clocks, and each occurrence gets one run.

pub(crate) mod command;
mod part;

use chrono::{DateTime, SecondsFormat, Utc};
use tokio_postgres::{Client, GenericClient, Row, types::ToSql};
use uuid::Uuid;

pub(crate) use part::{LONGEST, Scheduler};

use crate::{
    error::Error,
    pools::answered,
    schedule::{Decision, Note, Schedule, due},
    sql,
};

/// A schedule as the database has it, and how far it has come.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) timezone: String,
    pub(crate) overlap: String,
    /// Nothing before is missed.
    pub(crate) anchor: DateTime<Utc>,
    /// The latest occurrence up to now that has a run, and the state of that.
    pub(crate) last: Option<DateTime<Utc>>,
    pub(crate) status: Option<String>,
    /// What time it is.
    pub(crate) now: DateTime<Utc>,
}

/// What became of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decided {
    /// It has a run now.
    Fired(Uuid),
    /// This earlier run is unfinished.
    Skipped(Uuid),
    /// It was decided before.
    Exists,
}

/// The schedules, or the one of this name.
pub(crate) async fn known(client: &impl GenericClient, name: Option<&str>) -> Result<Vec<Known>, Error> {
    let statement = sql::schedules::KNOWN;
    let rows = answered(statement.name, client.query(statement.text, &[/* name */ &name])).await?;
    rows.iter().map(Known::from_row).collect::<Result<_, _>>().map_err(Error::postgres(statement.name))
}

impl Known {
    fn from_row(row: &Row) -> Result<Known, tokio_postgres::Error> {
        Ok(Known {
            name: row.try_get("name")?,
            expression: row.try_get("schedule")?,
            timezone: row.try_get("timezone")?,
            overlap: row.try_get("overlap")?,
            anchor: row.try_get("anchor")?,
            last: row.try_get("last")?,
            status: row.try_get("status")?,
            now: row.try_get("now")?,
        })
    }

    /// Read; a catalogue that was loaded by hand may hold anything.
    pub(crate) fn schedule(&self) -> Result<Schedule, Error> {
        Schedule::parse(&self.expression, &self.timezone).map_err(|problem| Error::Other(format!("{}: {problem}", self.name)))
    }
}

/// Fires an occurrence, in the caller's transaction.
pub(crate) async fn decide(client: &impl GenericClient, name: &str, at: DateTime<Utc>) -> Result<Decided, Error> {
    let statement = sql::schedules::DECIDE;
    let row = answered(statement.name, client.query_one(statement.text, &[/* schedule */ &name, /* scheduled_for */ &at])).await?;
    let decided = || {
        Ok(match row.try_get("decision")? {
            "fired" => Decided::Fired(row.try_get("run_id")?),
            "skipped" => Decided::Skipped(row.try_get("suppressed_by")?),
            _ => Decided::Exists,
        })
    };
    decided().map_err(Error::postgres(statement.name))
}

/// Notes what is not fired; how many of these were not noted before.
async fn note(client: &impl GenericClient, known: &Known, notes: &[Note]) -> Result<u64, Error> {
    if notes.is_empty() {
        return Ok(0);
    }
    let statement = sql::schedules::NOTE;
    let decisions: Vec<&str> = notes.iter().map(|note| note.decision.as_str()).collect();
    let from: Vec<DateTime<Utc>> = notes.iter().map(|note| note.unfired.at).collect();
    let until: Vec<DateTime<Utc>> = notes.iter().map(|note| note.unfired.until).collect();
    let occurrences: Vec<i32> = notes.iter().map(|note| note.unfired.count.try_into().unwrap_or(i32::MAX)).collect();
    let local_times: Vec<String> = notes.iter().map(|note| format!("{} {}", note.unfired.shown(), known.timezone)).collect();
    let parameters: [&(dyn ToSql + Sync); 6] = [
        /* schedule */ &known.name,
        /* decisions */ &decisions,
        /* scheduled_for */ &from,
        /* until */ &until,
        /* occurrences */ &occurrences,
        /* local_times */ &local_times,
    ];
    answered(statement.name, client.execute(statement.text, &parameters)).await
}

/// Fires the latest occurrence of a schedule that is due, and notes in the same transaction what it passes over: missed ones before it, and what
/// the clock of its zone has done. Nothing where none is due.
pub(crate) async fn fire_due(client: &mut Client, known: &Known) -> Result<Option<(DateTime<Utc>, Decided)>, Error> {
    let schedule = known.schedule()?;
    let due = due(&schedule, known.anchor, known.last, known.now);
    let name = &known.name;
    let Some(latest) = due.latest else {
        if note(client, known, &due.clock).await? > 0 {
            told(known, &due.clock);
        }
        return Ok(None);
    };
    let transaction = answered("schedules/begin", client.transaction()).await?;
    let decided = decide(&transaction, name, latest.at).await?;
    let mut notes = due.clock;
    if decided != Decided::Exists {
        // Who has decided it before has noted them.
        notes.extend(due.missed);
    }
    let noted = note(&transaction, known, &notes).await?;
    answered("schedules/commit", transaction.commit()).await?;

    let (scheduled_for, late_s) = (written(latest.at), (known.now - latest.at).num_seconds());
    match decided {
        Decided::Fired(run) => tracing::info!(schedule = name, scheduled_for, late_s, run_id = %run, "fired"),
        Decided::Skipped(by) => {
            tracing::warn!(schedule = name, scheduled_for, suppressed_by = %by, "skipped: an earlier run of the schedule is unfinished");
        }
        Decided::Exists => {}
    }
    if noted > 0 {
        told(known, &notes);
    }
    Ok(Some((latest.at, decided)))
}

/// Says what was noted.
fn told(known: &Known, notes: &[Note]) {
    for Note { decision, unfired } in notes {
        let (count, local, schedule) = (unfired.count, unfired.shown(), &known.name);
        let (first, last) = (written(unfired.at), written(unfired.until));
        match decision {
            Decision::Missed => {
                tracing::warn!(
                    schedule,
                    count,
                    first,
                    last,
                    "missed: nothing fired these in time; of what is due only the latest is fired"
                );
            }
            Decision::Absent => tracing::info!(schedule, count, local, at = first, "absent: the clock is put forward over these"),
            Decision::Repeated => {
                tracing::info!(schedule, count, local, first, "repeated: the clock shows these again, and they have fired")
            }
        }
    }
}

/// A time as the commands and the log write it.
fn written(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}
