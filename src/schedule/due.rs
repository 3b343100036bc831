//! What is due: at most the latest occurrence is fired late, the rest is missed.

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

use super::{Coming, Occurrence, Schedule, Unfired};

/// So many missed occurrences are counted; more are as many.
const MOST_COUNTED: u32 = 10_000;
/// So far back the latest occurrence is looked for first, each next only where there is none: a schedule that fires each minute and one that fires
/// each year cost about the same.
const LOOKS: [TimeDelta; 4] = [TimeDelta::hours(2), TimeDelta::days(2), TimeDelta::days(64), TimeDelta::days(8 * 366)];

/// Why an occurrence was not fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nobody fired it in time, and a later one was due.
    Missed,
    /// The clock was put forward over it.
    Absent,
    /// The clock showed it a second time.
    Repeated,
}

impl Decision {
    /// As the database has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Missed => "missed",
            Decision::Absent => "absent",
            Decision::Repeated => "repeated",
        }
    }
}

/// Occurrences that were not fired, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// Why.
    pub decision: Decision,
    /// Which.
    pub unfired: Unfired,
}

/// What is due of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// The occurrence to fire.
    pub latest: Option<Occurrence>,
    /// What came before it and was not fired.
    pub missed: Option<Note>,
    /// What the clock did to others.
    pub clock: Vec<Note>,
}

/// What is due by now and was not decided yet. `last` is the latest occurrence that was, if any; where the schedule is newer than that, its anchor
/// counts.
pub fn due(schedule: &Schedule, anchor: DateTime<Utc>, last: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Due {
    let begin = schedule.begins_after(anchor);
    let last = last.map_or(begin, |last| last.max(begin));
    let latest_from = |from| schedule.occurrences(anchor, from).take_while(|next| next.at <= now).last();
    let near = LOOKS.into_iter().map(|look| now - look).take_while(|from| *from > last);
    let latest = near.chain([last]).find_map(latest_from);

    let mut due = Due { latest, ..Due::default() };
    let mut missed: Option<Unfired> = None;
    for coming in schedule.coming(anchor, last) {
        match coming {
            // Nothing behind this has come yet.
            Coming::Fires(next) if next.at > now => break,
            Coming::Absent(unfired) | Coming::Repeated(unfired) if unfired.until > now => break,
            Coming::Absent(unfired) => due.clock.push(Note { decision: Decision::Absent, unfired }),
            Coming::Repeated(unfired) => due.clock.push(Note { decision: Decision::Repeated, unfired }),
            Coming::Fires(next) if Some(next) == latest => {}
            Coming::Fires(next) => {
                let local: NaiveDateTime = next.local.naive_local();
                let so_far = missed.get_or_insert(Unfired { at: next.at, until: next.at, first: local, last: local, count: 0 });
                (so_far.until, so_far.last, so_far.count) = (next.at, local, so_far.count + 1);
                if so_far.count == MOST_COUNTED {
                    break;
                }
            }
        }
    }
    due.missed = missed.map(|unfired| Note { decision: Decision::Missed, unfired });
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a time")
    }

    fn of(expression: &str, zone: &str, last: Option<&str>, now: &str) -> (Option<String>, String) {
        let schedule = Schedule::parse(expression, zone).expect("valid");
        let due = due(&schedule, at("2020-01-01T00:00:00Z"), last.map(at), at(now));
        let notes = due.missed.iter().chain(&due.clock);
        let notes: Vec<String> = notes
            .map(|note| format!("{} {} {} to {}", note.unfired.count, note.decision.as_str(), note.unfired.first, note.unfired.last))
            .collect();
        (due.latest.map(|latest| latest.at.format("%m-%d %H:%M").to_string()), notes.join("; "))
    }

    #[test]
    fn at_most_the_latest_is_due_and_the_rest_is_missed() {
        let quarter = |last, now| of("cron(0/15 * * * ? *)", "", last, now);
        assert_eq!(quarter(Some("2026-06-01T10:00:00Z"), "2026-06-01T10:14:59Z"), (None, String::new()));
        assert_eq!(quarter(Some("2026-06-01T10:00:00Z"), "2026-06-01T10:15:00Z"), (Some("06-01 10:15".to_owned()), String::new()));
        assert_eq!(
            quarter(Some("2026-06-01T10:00:00Z"), "2026-06-01T11:07:00Z"),
            (Some("06-01 11:00".to_owned()), "3 missed 2026-06-01 10:15:00 to 2026-06-01 10:45:00".to_owned())
        );
        // After years, in bounded time, and with a count that ends.
        let (latest, missed) = quarter(None, "2026-06-01T11:07:00Z");
        assert_eq!(latest.as_deref(), Some("06-01 11:00"));
        assert!(missed.starts_with("10000 missed 2020-01-01"), "{missed}");
        let (latest, missed) = of("rate(1 minute)", "", Some("2026-06-01T10:00:00Z"), "2026-06-01T10:05:59Z");
        assert_eq!((latest.as_deref(), missed.as_str()), (Some("06-01 10:05"), "4 missed 2026-06-01 10:01:00 to 2026-06-01 10:04:00"));
    }

    #[test]
    fn a_schedule_that_is_rare_is_found_however_long_ago_it_was() {
        for (expression, latest) in [
            ("cron(0 0 29 2 ? *)", "02-29 00:00"),
            ("cron(0 9 1 1 ? *)", "01-01 09:00"),
            ("cron(0 9 1 * ? *)", "06-01 09:00"),
            ("cron(0 9 * * ? *)", "06-01 09:00"),
        ] {
            assert_eq!(of(expression, "", Some("2023-01-01T00:00:00Z"), "2026-06-01T11:07:00Z").0.as_deref(), Some(latest), "{expression}");
        }
        assert_eq!(of("cron(0 9 1 1 ? 2021)", "", Some("2023-01-01T00:00:00Z"), "2026-06-01T11:07:00Z"), (None, String::new()));
    }

    #[test]
    fn a_new_rate_is_due_at_once_and_a_new_cron_at_its_time() {
        let anchor = at("2026-06-01T10:00:00.5Z");
        let due = |expression: &str, now: &str| {
            let schedule = Schedule::parse(expression, "").expect("valid");
            due(&schedule, anchor, None, at(now)).latest.map(|latest| latest.at)
        };
        assert_eq!(due("rate(1 hour)", "2026-06-01T10:00:01Z"), Some(at("2026-06-01T10:00:00Z")));
        assert_eq!(due("cron(0 * * * ? *)", "2026-06-01T10:00:01Z"), None);
        assert_eq!(due("cron(0 * * * ? *)", "2026-06-01T11:00:01Z"), Some(at("2026-06-01T11:00:00Z")));
    }

    #[test]
    fn what_the_clock_does_is_noted_once_it_is_over() {
        let night = |expression, now| of(expression, "America/New_York", Some("2026-03-07T07:30:00Z"), now);
        assert_eq!(night("cron(30 2 * * ? *)", "2026-03-08T06:59:59Z"), (None, String::new()));
        let absent = "1 absent 2026-03-08 02:30:00 to 2026-03-08 02:30:00";
        assert_eq!(night("cron(30 2 * * ? *)", "2026-03-08T07:00:00Z"), (None, absent.to_owned()));
        assert_eq!(night("cron(30 2 * * ? *)", "2026-03-09T06:30:00Z"), (Some("03-09 06:30".to_owned()), absent.to_owned()));
        let autumn = |now| of("cron(0,30 1 * * ? *)", "America/New_York", Some("2026-11-01T05:00:00Z"), now);
        assert_eq!(autumn("2026-11-01T06:29:59Z"), (Some("11-01 05:30".to_owned()), String::new()));
        let repeated = "2 repeated 2026-11-01 01:00:00 to 2026-11-01 01:30:00";
        assert_eq!(autumn("2026-11-01T06:30:00Z"), (Some("11-01 05:30".to_owned()), repeated.to_owned()));
    }
}
