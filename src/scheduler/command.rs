//! `workers schedule`: what is scheduled, when it comes, and firing it from outside.

use chrono::{DateTime, FixedOffset, Utc};
use clap::Subcommand;
use tokio_postgres::Client;

use super::{Decided, Known, decide, fire_due, known, written};
use crate::{
    error::Error,
    nearest::distance,
    schedule::{Coming, Pass, Unfired},
};

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List the schedules: expression, time zone, overlap, the latest occurrence with the state of its run, and the next one
    List,
    /// Show the coming times of a schedule, in UTC and local, and what its clock does to them
    Next {
        /// Name of the schedule: that of its task
        name: String,
        /// How many
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        count: u32,
        /// After this time instead of now, such as 2026-01-02T03:00:00Z
        #[arg(long, value_parser = time)]
        after: Option<DateTime<Utc>>,
    },
    /// Fire an occurrence of a schedule, or what is due. However often an occurrence is fired, it gets one run
    Fire {
        /// Name of the schedule: that of its task
        #[arg(required_unless_present = "due")]
        name: Option<String>,
        /// The time it was scheduled for, such as 2026-01-02T03:00:00Z; without it the latest occurrence that is due
        #[arg(value_parser = time)]
        time: Option<DateTime<Utc>>,
        /// Of every schedule the latest occurrence that is due. Run it each minute
        #[arg(long, conflicts_with = "name")]
        due: bool,
    },
}

/// A time with its offset; nothing else stands for one.
fn time(text: &str) -> Result<DateTime<Utc>, String> {
    DateTime::parse_from_rfc3339(text).map(|time: DateTime<FixedOffset>| time.to_utc()).map_err(|_| {
        let placeholder = text.contains("aws.scheduler") || text.contains("\\u003c");
        let hint = if placeholder {
            "; this is the placeholder of EventBridge itself: whatever wrote the JSON has escaped its < and > (write them as they are)"
        } else {
            ""
        };
        format!("it is not a time with its offset, such as 2026-01-02T03:00:00Z; it is never replaced by the present{hint}")
    })
}

/// Does it; `say` gets each line. Whether something was fired, so that the relay is to be woken.
pub(crate) async fn handle(client: &mut Client, command: ScheduleCommand, say: impl Fn(&str)) -> Result<bool, Error> {
    match command {
        ScheduleCommand::List => list(client, say).await.map(|()| false),
        ScheduleCommand::Next { name, count, after } => {
            let known = find(client, &name).await?;
            next(&known, count as usize, after.unwrap_or(known.now), say).map(|()| false)
        }
        ScheduleCommand::Fire { name: Some(name), time: Some(time), .. } => fire(client, &name, time, say).await,
        ScheduleCommand::Fire { name: Some(name), .. } => {
            let known = find(client, &name).await?;
            let done = fire_due(client, &known).await?;
            if done.is_none() {
                let next = known.schedule()?.occurrences(known.anchor, known.now).next();
                say(&format!("nothing of {name} is due; it comes at {}", next.map_or("no time".to_owned(), |next| written(next.at))));
            }
            Ok(done.is_some_and(|(at, decided)| tell(&name, at, decided, &say)))
        }
        ScheduleCommand::Fire { .. } => fire_all(client, say).await,
    }
}

/// The schedule of this name.
async fn find(client: &Client, name: &str) -> Result<Known, Error> {
    let mut all = known(client, None).await?;
    if let Some(place) = all.iter().position(|known| known.name == name) {
        return Ok(all.swap_remove(place));
    }
    let near = all.iter().map(|known| &known.name).min_by_key(|known| distance(known, name));
    let near = near.map_or("none is loaded: run workers migrate".to_owned(), |near| format!("did you mean {near}?"));
    Err(Error::Other(format!(
        "there is no schedule {name:?} (each is named by its task); {near} workers schedule list shows all. \
         Schedules are those of the database: after a change of yours run workers migrate"
    )))
}

async fn list(client: &Client, say: impl Fn(&str)) -> Result<(), Error> {
    let mut rows = vec![["SCHEDULE", "EXPRESSION", "TIME ZONE", "OVERLAP", "LATEST", "ITS RUN", "NEXT"].map(str::to_owned)];
    for known in known(client, None).await? {
        let next = match known.schedule() {
            Ok(schedule) => schedule.occurrences(known.anchor, known.now).next().map_or("-".to_owned(), |next| written(next.at)),
            Err(error) => error.to_string(),
        };
        let (last, status) = (known.last.map_or("-".to_owned(), written), known.status.unwrap_or("-".to_owned()));
        rows.push([known.name, known.expression, known.timezone, known.overlap, last, status, next]);
    }
    let widths: Vec<usize> = (0..7).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say(cells.join("  ").trim_end());
    }
    Ok(())
}

fn next(known: &Known, count: usize, after: DateTime<Utc>, say: impl Fn(&str)) -> Result<(), Error> {
    let schedule = known.schedule()?;
    say(&format!("{}  {}  {}", known.name, known.expression, known.timezone));
    let mut left = count;
    for coming in schedule.coming(known.anchor, after) {
        let aside = |unfired: Unfired, what: &str| say(&format!("{:<20}  {:<26}  {what}", "-", unfired.shown()));
        match coming {
            Coming::Fires(next) => {
                let mark = match next.pass {
                    Pass::Only => "",
                    Pass::First => "  the clock is put back: the first time",
                    Pass::Second => "  the clock is put back: the second time",
                };
                let shown = next.local.format("%Y-%m-%d %H:%M:%S %:z").to_string();
                say(format!("{:<20}  {shown:<26}{mark}", written(next.at)).trim_end());
                left -= 1;
            }
            Coming::Absent(unfired) => aside(unfired, "does not come: the clock is put forward"),
            Coming::Repeated(unfired) => aside(unfired, "comes again, and does not fire again: the clock is put back"),
        }
        if left == 0 {
            return Ok(());
        }
    }
    say("no further times");
    Ok(())
}

/// Says what became of it; whether it was fired.
fn tell(name: &str, at: DateTime<Utc>, decided: Decided, say: impl Fn(&str)) -> bool {
    let at = written(at);
    say(&match decided {
        Decided::Fired(run) => format!("fired    {name} {at}: run {run}"),
        Decided::Skipped(by) => format!("skipped  {name} {at}: its run {by} is unfinished"),
        Decided::Exists => format!("exists   {name} {at}: it was decided before"),
    });
    matches!(decided, Decided::Fired(_))
}

async fn fire(client: &Client, name: &str, at: DateTime<Utc>, say: impl Fn(&str)) -> Result<bool, Error> {
    let decided = decide(client, name, at).await?;
    if let Some(known) = known(client, Some(name)).await?.first()
        && let Ok(schedule) = known.schedule()
        && !schedule.is_rate()
        && !schedule.falls_on(known.anchor, at)
    {
        tracing::warn!(schedule = name, scheduled_for = written(at), "this is none of the times of {}", known.expression);
    }
    Ok(tell(name, at, decided, say))
}

/// One that cannot be fired holds up no other.
async fn fire_all(client: &mut Client, say: impl Fn(&str)) -> Result<bool, Error> {
    let (mut fired, mut failed) = (false, Vec::new());
    for known in known(client, None).await? {
        match fire_due(client, &known).await {
            Ok(Some((at, decided))) => fired |= tell(&known.name, at, decided, &say),
            Ok(None) => {}
            Err(error) if error.session_is_gone() => return Err(error),
            Err(error) => {
                tracing::error!(schedule = known.name, %error, "a schedule was not fired; the others go on");
                failed.push(known.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(fired);
    }
    Err(Error::Other(format!("these schedules were not fired: {}; see the log", failed.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_stands_for_a_time() {
        for (text, utc) in [("2026-01-02T03:00:00Z", "2026-01-02T03:00:00Z"), ("2026-01-02T03:00:00-03:00", "2026-01-02T06:00:00Z")] {
            assert_eq!(time(text).map(written), Ok(utc.to_owned()));
        }
        for wrong in ["", "now", "today", "2026-01-02", "2026-01-02T03:00:00", "1767322800", "infinity", "03:00", "yesterday"] {
            assert!(time(wrong).expect_err(wrong).contains("never replaced"), "{wrong}");
        }
        for wrong in ["<aws.scheduler.scheduled-time>", "\\u003caws.scheduler.scheduled-time\\u003e"] {
            assert!(time(wrong).expect_err(wrong).contains("placeholder"), "{wrong}");
        }
    }
}
