//! Schedules: `rate(n unit)` and the six-field `cron(...)` as EventBridge defines them, in a time zone.
//!
//! A rate counts from its anchor, in real time: a day is 24 hours. A cron names local times of its zone. Where a clock is put forward, the local
//! times that it skips do not come that day. Where it is put back, a local time that comes twice fires the first time; the second time too
//! only for schedules that run on through it, so often that they would pause otherwise: see [`Pass`]. Everything here is reckoning: what
//! time it is, and what has fired, PostgreSQL says.

mod coming;
mod cron;
mod due;
mod fields;
mod zone;

use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Offset, SubsecRound, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

pub use coming::{Coming, Occurrence, Pass, Unfired};
pub use due::{Decision, Due, Note, due};

use cron::Cron;

/// Longest expression, as AWS has it.
const LONGEST: usize = 256;
/// Both forms, for errors.
const FORMS: &str = "a schedule is rate(1 hour), rate(15 minutes), rate(7 days), or cron(minute hour day-of-month month day-of-week year)";

/// Whether `rate` takes seconds in this process. EventBridge has none, so only programs of tests ask for them.
static SECONDS: AtomicBool = AtomicBool::new(false);

/// Lets `rate` take seconds from here on.
#[cfg(feature = "testing")]
pub(crate) fn accept_seconds() {
    SECONDS.store(true, Ordering::Relaxed);
}

/// When a task is to run.
#[derive(Debug, Clone)]
pub struct Schedule {
    form: Form,
    zone: Tz,
}

#[derive(Debug, Clone)]
enum Form {
    /// So long from one to the next.
    Rate(TimeDelta),
    Cron(Box<Cron>),
}

/// Checks an expression and the name of its time zone; the error says which part is wrong, and what would be right.
pub fn check(expression: &str, timezone: &str) -> Result<(), String> {
    Schedule::parse(expression, timezone).map(drop)
}

impl Schedule {
    /// Reads an expression, for a time zone by its IANA name; an empty name is UTC.
    pub fn parse(expression: &str, timezone: &str) -> Result<Schedule, String> {
        let form = form(expression).map_err(|problem| format!("the schedule {expression:?}: {problem}"))?;
        Ok(Schedule { form, zone: zone::parse(timezone)? })
    }

    /// Its time zone.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// Whether it counts from an anchor.
    pub fn is_rate(&self) -> bool {
        matches!(self.form, Form::Rate(_))
    }

    /// What comes after a time, in order, without end or up to the year 2199. A rate counts from the anchor, which is its first
    /// occurrence; a cron does not look at it.
    pub fn coming(&self, anchor: DateTime<Utc>, after: DateTime<Utc>) -> Box<dyn Iterator<Item = Coming> + '_> {
        match &self.form {
            Form::Cron(cron) => Box::new(coming::Times::new(cron, self.zone, after)),
            Form::Rate(every) => {
                let anchor = anchor.trunc_subsecs(0);
                let first = match after.signed_duration_since(anchor).num_seconds() {
                    passed if after < anchor || passed < 0 => Some(anchor),
                    passed => TimeDelta::try_seconds((passed / every.num_seconds() + 1) * every.num_seconds())
                        .and_then(|distance| anchor.checked_add_signed(distance)),
                };
                let every = *every;
                let times = std::iter::successors(first, move |at| at.checked_add_signed(every));
                Box::new(times.map(|at| Coming::Fires(Occurrence { at, local: local(self.zone, at), pass: Pass::Only })))
            }
        }
    }

    /// The occurrences among them.
    pub fn occurrences(&self, anchor: DateTime<Utc>, after: DateTime<Utc>) -> impl Iterator<Item = Occurrence> + '_ {
        self.coming(anchor, after).filter_map(|coming| match coming {
            Coming::Fires(occurrence) => Some(occurrence),
            Coming::Absent(_) | Coming::Repeated(_) => None,
        })
    }

    /// Whether this is one of its occurrences.
    pub fn falls_on(&self, anchor: DateTime<Utc>, at: DateTime<Utc>) -> bool {
        self.occurrences(anchor, at - TimeDelta::milliseconds(1)).next().is_some_and(|next| next.at == at)
    }

    /// Where its occurrences begin: nothing before is missed. A rate begins with its anchor, a cron behind it.
    pub(crate) fn begins_after(&self, anchor: DateTime<Utc>) -> DateTime<Utc> {
        match self.form {
            Form::Rate(_) => anchor.trunc_subsecs(0) - TimeDelta::milliseconds(1),
            Form::Cron(_) => anchor,
        }
    }
}

/// A time as a clock of the zone shows it.
pub(crate) fn local(zone: Tz, at: DateTime<Utc>) -> DateTime<chrono::FixedOffset> {
    at.with_timezone(&zone.offset_from_utc_datetime(&at.naive_utc()).fix())
}

fn form(expression: &str) -> Result<Form, String> {
    if expression.len() > LONGEST {
        return Err(format!("it has {} characters, and {LONGEST} are allowed", expression.len()));
    }
    let inside = |name: &str| expression.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
    if let Some(text) = inside("rate") {
        return rate(text).map(Form::Rate);
    }
    if let Some(text) = inside("cron") {
        return Cron::parse(text).map(|cron| Form::Cron(Box::new(cron)));
    }
    if expression.starts_with("at(") {
        return Err(format!("at(…) is one run at one time: give work.dispatch a run_at for it; {FORMS}"));
    }
    if expression.split_whitespace().count() >= 5 {
        // Fields without their frame; what is wrong with them is told where nothing else is.
        let framed = Cron::parse(expression).map(|_| format!("write cron({expression})"));
        return Err(framed.unwrap_or_else(|problem| problem));
    }
    Err(FORMS.to_owned())
}

fn rate(text: &str) -> Result<TimeDelta, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [value, unit] = words[..] else { return Err(format!("a rate is a number and a unit; {FORMS}")) };
    let count = value
        .parse::<i64>()
        .ok()
        .filter(|count| *count > 0 && value.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| format!("{value:?} is not a whole number above 0"))?;
    let (single, seconds) = match unit {
        "minute" | "minutes" => ("minute", 60),
        "hour" | "hours" => ("hour", 3_600),
        "day" | "days" => ("day", 86_400),
        "second" | "seconds" if SECONDS.load(Ordering::Relaxed) => ("second", 1),
        "second" | "seconds" => return Err("the shortest rate is rate(1 minute)".to_owned()),
        _ => return Err(format!("the unit {unit:?} is none of minute, hour and day, with an s when the number is not 1")),
    };
    let right = if count == 1 { single.to_owned() } else { format!("{single}s") };
    if unit != right {
        return Err(format!("the unit has an s exactly when the number is not 1: write rate({value} {right})"));
    }
    count
        .checked_mul(seconds)
        .filter(|seconds| *seconds <= 366 * 86_400)
        .and_then(TimeDelta::try_seconds)
        .ok_or_else(|| "the rate is longer than a year".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(expression: &str) -> String {
        Schedule::parse(expression, "").err().unwrap_or_else(|| panic!("{expression} is accepted"))
    }

    #[test]
    fn rates_are_those_of_eventbridge() {
        for (right, seconds) in [("rate(1 hour)", 3_600), ("rate(15 minutes)", 900), ("rate(1 minute)", 60), ("rate(7 days)", 604_800)] {
            assert!(matches!(form(right), Ok(Form::Rate(every)) if every.num_seconds() == seconds), "{right}");
        }
        for (wrong, word) in [
            ("rate(1 hours)", "write rate(1 hour)"),
            ("rate(5 hour)", "write rate(5 hours)"),
            ("rate(1 days)", "write rate(1 day)"),
            ("rate(0 minutes)", "above 0"),
            ("rate(-1 minutes)", "above 0"),
            ("rate(+2 hours)", "above 0"),
            ("rate(1.5 hours)", "above 0"),
            ("rate(10 seconds)", "shortest"),
            ("rate(1 month)", "none of minute, hour and day"),
            ("rate(5)", "a number and a unit"),
            ("rate(5 minutes", "a schedule is"),
            ("RATE(5 minutes)", "a schedule is"),
            ("rate(2 hourss)", "none of"),
            ("rate(367 days)", "longer than a year"),
            ("rate(99999999999999999999 days)", "above 0"),
            ("hourly", "a schedule is"),
            ("", "a schedule is"),
            ("at(2030-01-01T00:00:00)", "run_at"),
        ] {
            assert!(refused(wrong).contains(word), "{wrong}: {}", refused(wrong));
        }
        let long = format!("cron(0 9 * * ? {})", vec!["2030"; 60].join(","));
        assert!(refused(&long).contains("256"), "{}", refused(&long));
    }

    #[test]
    fn a_rate_counts_from_its_anchor_in_real_time() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().expect("a time");
        let anchor = at("2026-03-07T18:00:00.7Z");
        let days = Schedule::parse("rate(1 day)", "America/New_York").expect("valid");
        let coming: Vec<String> =
            days.occurrences(anchor, at("2026-01-01T00:00:00Z")).take(3).map(|next| next.local.to_rfc3339()).collect();
        // The anchor first; a day is 24 hours, also where the clock is put forward.
        assert_eq!(coming, ["2026-03-07T13:00:00-05:00", "2026-03-08T14:00:00-04:00", "2026-03-09T14:00:00-04:00"]);
        for (after, next) in [
            ("2026-03-07T18:00:00Z", "2026-03-08T18:00:00Z"),
            ("2026-03-08T17:59:59.999Z", "2026-03-08T18:00:00Z"),
            ("2026-03-08T18:00:00Z", "2026-03-09T18:00:00Z"),
        ] {
            assert_eq!(days.occurrences(anchor, at(after)).next().map(|next| next.at), Some(at(next)), "after {after}");
        }
        assert!(days.falls_on(anchor, at("2027-03-07T18:00:00Z")) && !days.falls_on(anchor, at("2027-03-07T18:00:01Z")));
    }
}
