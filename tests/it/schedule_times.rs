//! When schedules fire, against two others: a walker that looks at every minute of jiff's calendar, which has time zone data of its own, and croner,
//! which reads cron by itself.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeZone, Utc};
use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, DateTime as Civil},
    tz::{AmbiguousOffset, TimeZone as Zone},
};
use monalisa::schedule::{Coming, Schedule};

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Whether a value is in a field, read anew for each value.
fn has(field: &str, value: i32, low: i32, high: i32, names: &[&str]) -> bool {
    let size = high - low + 1;
    let number = |text: &str| names.iter().position(|name| *name == text).map_or_else(|| text.parse().unwrap(), |place| place as i32 + low);
    field.split(',').any(|part| {
        let (base, step) = part.split_once('/').map_or((part, 1), |(base, step)| (base, step.parse::<i32>().unwrap()));
        let (from, to) = match base.split_once('-') {
            _ if base == "*" => (low, high),
            Some((from, to)) => (number(from), number(to)),
            None => (number(base), if part.contains('/') { high } else { number(base) }),
        };
        let (distance, length) = ((value - from).rem_euclid(size), (to - from).rem_euclid(size));
        distance <= length && distance % step == 0
    })
}

fn is_weekday(date: Date) -> bool {
    (2..=6).contains(&date.weekday().to_sunday_one_offset())
}

fn day_of_month(field: &str, date: Date) -> bool {
    let last = i32::from(date.days_in_month());
    let days = || (1..=last).map(|day| Date::constant(date.year(), date.month(), day as i8));
    let day = i32::from(date.day());
    field.split(',').any(|part| match part {
        "L" => day == last,
        "LW" => days().rfind(|day| is_weekday(*day)) == Some(date),
        _ => match part.strip_suffix('W') {
            Some(wanted) => {
                let wanted: i32 = wanted.parse().unwrap();
                let nearest = days().filter(|day| is_weekday(*day)).min_by_key(|day| (i32::from(day.day()) - wanted).abs());
                wanted <= last && nearest == Some(date)
            }
            None => has(part, day, 1, 31, &[]),
        },
    })
}

fn day_of_week(field: &str, date: Date) -> bool {
    let weekday = i32::from(date.weekday().to_sunday_one_offset());
    let number = |text: &str| DAYS.iter().position(|name| *name == text).map_or_else(|| text.parse().unwrap(), |place| place as i32 + 1);
    field.split(',').any(|part| match part.split_once('#') {
        Some((day, which)) => number(day) == weekday && (date.day() + 6) / 7 == which.parse::<i8>().unwrap(),
        None if part == "L" => weekday == 7,
        None => match part.strip_suffix('L') {
            Some(day) => number(day) == weekday && (date + 7.days()).month() != date.month(),
            None => has(part, weekday, 1, 7, &DAYS),
        },
    })
}

struct Fields<'a>([&'a str; 6]);

impl<'a> Fields<'a> {
    fn of(text: &'a str) -> Fields<'a> {
        let inside = text.strip_prefix("cron(").unwrap().strip_suffix(')').unwrap();
        Fields(inside.split_whitespace().collect::<Vec<_>>().try_into().unwrap())
    }

    fn date(&self, date: Date) -> bool {
        let [_, _, days, month, weekdays, year] = self.0;
        has(year, date.year().into(), 1970, 2199, &[])
            && has(month, date.month().into(), 1, 12, &MONTHS)
            && (days == "?" || day_of_month(days, date))
            && (weekdays == "?" || day_of_week(weekdays, date))
    }

    fn time(&self, time: Civil) -> bool {
        has(self.0[1], time.hour().into(), 0, 23, &[]) && has(self.0[0], time.minute().into(), 0, 59, &[])
    }
}

/// A minute at which a clock of a zone shows a time of the fields, and whether it shows it for the second time.
fn walk(fields: &Fields<'_>, zone: &Zone, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, bool)> {
    let mut found = Vec::new();
    let mut known: Option<(Date, bool)> = None;
    let mut at = from;
    while at < to {
        let shown = zone.to_datetime(at);
        if known.is_none_or(|(date, _)| date != shown.date()) {
            known = Some((shown.date(), fields.date(shown.date())));
        }
        let right = known.is_some_and(|(_, right)| right);
        if right && fields.time(shown) {
            let second =
                matches!(zone.to_ambiguous_timestamp(shown).offset(), AmbiguousOffset::Fold { after, .. } if zone.to_offset(at) == after);
            found.push((at, second));
        }
        // A day that is wrong is walked in hours, but for its end.
        at += SignedDuration::from_mins(if right || shown.hour() >= 22 { 1 } else { 60 });
    }
    found
}

fn utc(at: Timestamp) -> DateTime<Utc> {
    Utc.timestamp_opt(at.as_second(), 0).unwrap()
}

fn stamp(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Numbers that look like chance and are the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    /// A part of a field; a range goes on behind the end at times.
    fn part(&mut self, low: u64, high: u64, steps: bool, wraps: bool) -> String {
        let mut value = || low + self.below(high - low + 1);
        let (one, other) = (value(), value());
        let (from, to) = if wraps { (one, other) } else { (one.min(other), one.max(other)) };
        match self.below(if steps { 6 } else { 3 }) {
            0 => "*".to_owned(),
            1 => format!("{from}-{to}"),
            2 => from.to_string(),
            3 => format!("*/{}", 1 + self.below(high.min(20))),
            4 => format!("{from}/{}", 1 + self.below(high.min(20))),
            _ => format!("{from}-{to}/{}", 1 + self.below(9)),
        }
    }

    fn field(&mut self, low: u64, high: u64, steps: bool, wraps: bool) -> String {
        let parts: Vec<String> = (0..=self.below(3) / 2).map(|_| self.part(low, high, steps, wraps)).collect();
        parts.join(",")
    }

    fn expression(&mut self, wraps: bool) -> String {
        let (minute, hour) = (self.field(0, 59, true, wraps), self.field(0, 23, true, wraps));
        let month = if self.below(3) == 0 { self.field(1, 12, true, wraps) } else { "*".to_owned() };
        let (days, weekdays) = if self.below(2) == 0 {
            let special = self.one(&["L", "LW", "1W", "15W", "31W", "30W", "3,L", "1W,20"]).to_owned();
            (if self.below(2) == 0 { special } else { self.field(1, 31, true, wraps) }, "?".to_owned())
        } else {
            let special = self.one(&["6L", "1L", "2#1", "3#2", "5#5", "MON", "MON-FRI", "TUE,THU", "SATL"]).to_owned();
            ("?".to_owned(), if self.below(2) == 0 { special } else { self.field(1, 7, false, wraps) })
        };
        format!("cron({minute} {hour} {days} {month} {weekdays} *)")
    }
}

#[test]
fn every_reading_of_the_fields_is_that_of_a_walker_and_of_another_crate() {
    let parser = croner::parser::CronParser::builder()
        .seconds(croner::parser::Seconds::Required)
        .year(croner::parser::Year::Required)
        .alternative_weekdays(true)
        .sloppy_ranges(true)
        .build();
    let (from, to) = (stamp("2027-12-25T00:00:00Z"), stamp("2028-03-05T00:00:00Z"));
    let mut chance = Chance(0x5eed_cafe);
    let (mut walked, mut compared) = (0, 0);
    for round in 0..100 {
        let wraps = round % 2 == 0;
        let text = chance.expression(wraps);
        let schedule = match Schedule::parse(&text, "") {
            Ok(schedule) => schedule,
            Err(problem) => {
                assert!(problem.contains("never comes"), "{problem}");
                continue;
            }
        };
        let ours: Vec<DateTime<Utc>> = schedule
            .occurrences(utc(from), utc(from) - chrono::TimeDelta::seconds(1))
            .map(|next| next.at)
            .take_while(|at| *at < utc(to))
            .take(2_000)
            .collect();
        let end = if ours.len() == 2_000 { ours[1_999] } else { utc(to) };
        let theirs: Vec<DateTime<Utc>> = walk(&Fields::of(&text), &Zone::UTC, from, to)
            .into_iter()
            .map(|(at, _)| utc(at))
            .filter(|at| *at < end || ours.last() == Some(at))
            .collect();
        assert_eq!(ours, theirs, "{text}");
        walked += theirs.len();
        // It knows neither ranges that go on behind their end nor lists with *.
        if !wraps && !text.split(' ').any(|field| field.contains(',') && field.contains('*')) {
            let pattern = format!("0 {}", text.strip_prefix("cron(").unwrap().strip_suffix(')').unwrap());
            let cron = parser.parse(&pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            let mut at = utc(from) - chrono::TimeDelta::seconds(1);
            for next in ours.iter().take(60) {
                at = cron.find_next_occurrence(&at, false).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(at, *next, "{text}");
                compared += 1;
            }
        }
    }
    assert!(walked > 10_000 && compared > 500, "{walked} walked, {compared} compared");
}

/// A zone, a time before one of its changes, an hour that is skipped or shown twice, and a minute of it.
const CHANGES: [(&str, &str, i32, i32); 8] = [
    ("America/New_York", "2026-03-05T12:00:00Z", 2, 30),
    ("America/New_York", "2026-10-29T12:00:00Z", 1, 30),
    // Midnight was skipped there, and the hour before it shown twice.
    ("America/Sao_Paulo", "2018-11-01T12:00:00Z", 0, 30),
    ("America/Sao_Paulo", "2018-02-15T12:00:00Z", 23, 30),
    // Half an hour.
    ("Australia/Lord_Howe", "2026-10-01T12:00:00Z", 2, 15),
    ("Australia/Lord_Howe", "2026-04-02T12:00:00Z", 1, 45),
    ("Europe/Dublin", "2026-03-26T12:00:00Z", 1, 30),
    ("Europe/Dublin", "2026-10-22T12:00:00Z", 1, 30),
];

#[test]
fn the_coming_twenty_times_of_six_schedules_around_each_change_are_those_of_an_independent_calendar() {
    let (mut changed, mut compared) = (0, 0);
    for (zone, from, hour, minute) in CHANGES {
        let other = Zone::get(zone).unwrap();
        // Whether what is shown twice fires twice: not what runs at fixed times, but what runs on through the night.
        for (text, twice, days) in [
            (format!("cron({minute} {hour} * * ? *)"), false, 23),
            (format!("cron({minute} {hour},{} * * ? *)", (hour + 2) % 24), false, 12),
            (format!("cron({minute} {hour} ? * SUN,SAT *)"), false, 80),
            ("cron(0/15 * * * ? *)".to_owned(), true, 1),
            ("cron(45 * * * ? *)".to_owned(), true, 2),
            ("cron(5,35 22-3 * * ? *)".to_owned(), true, 3),
        ] {
            let schedule = Schedule::parse(&text, zone).unwrap();
            // What runs often is looked at from just before the change on.
            let begin = if twice { stamp(from) + SignedDuration::from_hours(change_within(&other, stamp(from)) - 3) } else { stamp(from) };
            let walked =
                walk(&Fields::of(&text), &other, begin + SignedDuration::from_mins(1), begin + SignedDuration::from_hours(24 * days));
            changed += walked.iter().filter(|(_, second)| *second).count();
            let expected: Vec<DateTime<Utc>> =
                walked.into_iter().filter(|(_, second)| twice || !second).map(|(at, _)| utc(at)).take(20).collect();
            let ours: Vec<DateTime<Utc>> = schedule.occurrences(utc(begin), utc(begin)).map(|next| next.at).take(20).collect();
            assert_eq!(ours, expected, "{text} in {zone} from {begin}");
            assert!(ours.len() == 20 && ours.windows(2).all(|pair| pair[0] < pair[1]), "each once: {ours:?}");
            if twice {
                let longest = ours.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
                // An hour, or as long as the clock is put back by beside a quarter that is not shown twice; the night schedule pauses by day.
                assert!(longest.num_minutes() <= 90 || text.contains("22-3"), "{text} in {zone} pauses for {longest}");
            }
            compared += 1;
        }
    }
    assert!(changed > 20 && compared == 48, "{changed} second times, {compared} schedules");
}

/// In how many hours the clock of a zone is changed.
fn change_within(zone: &Zone, from: Timestamp) -> i64 {
    let before = zone.to_offset(from);
    (1..240).find(|hours| zone.to_offset(from + SignedDuration::from_hours(*hours)) != before).expect("a change within ten days")
}

#[test]
fn whatever_the_schedule_and_the_zone_each_first_time_fires_and_second_ones_all_or_none() {
    let mut chance = Chance(0xd57_cafe);
    let (mut all, mut none, mut absent) = (0, 0, 0);
    let changes = CHANGES.iter().map(|(zone, from, ..)| (*zone, *from));
    // A whole day was skipped there; and the clock was put back at another hour than on.
    let changes = changes.chain([("Pacific/Apia", "2011-12-28T12:00:00Z"), ("Africa/Casablanca", "2026-02-13T12:00:00Z")]);
    for (zone, from) in changes {
        let other = Zone::get(zone).unwrap();
        for round in 0..16 {
            let hours = if round % 2 == 0 {
                chance.field(0, 23, true, true)
            } else {
                chance.one(&["0", "1", "2", "23", "1,13", "0-1", "0/3"]).to_owned()
            };
            let (minute, hour) = (chance.field(0, 59, true, true), hours);
            let text = format!("cron({minute} {hour} * * ? *)");
            let schedule = Schedule::parse(&text, zone).unwrap();
            let (begin, end) = (stamp(from), stamp(from) + SignedDuration::from_hours(24 * 5));
            let walked = walk(&Fields::of(&text), &other, begin + SignedDuration::from_mins(1), end);
            let (firsts, seconds): (Vec<_>, Vec<_>) = walked.into_iter().partition(|(_, second)| !second);
            let firsts: BTreeSet<DateTime<Utc>> = firsts.into_iter().map(|(at, _)| utc(at)).collect();
            let seconds: BTreeSet<DateTime<Utc>> = seconds.into_iter().map(|(at, _)| utc(at)).collect();
            let mut ours = Vec::new();
            let mut repeated = 0;
            for coming in schedule.coming(utc(begin), utc(begin)) {
                match coming {
                    Coming::Fires(next) if next.at >= utc(end) => break,
                    Coming::Fires(next) => ours.push(next.at),
                    Coming::Absent(unfired) => absent += unfired.count,
                    Coming::Repeated(unfired) => repeated += unfired.count as usize,
                }
            }
            assert!(ours.windows(2).all(|pair| pair[0] < pair[1]), "{text} in {zone}: each once, in order");
            let ours: BTreeSet<DateTime<Utc>> = ours.into_iter().collect();
            let beyond: BTreeSet<DateTime<Utc>> = ours.difference(&firsts).copied().collect();
            assert_eq!(firsts.difference(&ours).count(), 0, "{text} in {zone} leaves first times out");
            if beyond.is_empty() {
                assert_eq!(repeated, seconds.len(), "{text} in {zone}: what does not fire again is told");
                none += usize::from(!seconds.is_empty());
            } else {
                assert_eq!((beyond, repeated), (seconds, 0), "{text} in {zone}");
                all += 1;
            }
        }
    }
    assert!(all > 5 && none > 5 && absent > 100, "{all} fire twice, {none} do not, {absent} are absent");
}
