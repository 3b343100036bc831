//! The coming occurrences of a cron in a time zone, and what its clock does to them.

use chrono::{DateTime, FixedOffset, NaiveDateTime, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;

use super::{
    cron::Cron,
    local,
    zone::{Shown, Stretch, shown},
};

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coming {
    /// It fires.
    Fires(Occurrence),
    /// The clock is put forward over these: they do not come that day.
    Absent(Unfired),
    /// The clock shows these again, and they have fired the first time.
    Repeated(Unfired),
}

/// A time at which a schedule fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// The time.
    pub at: DateTime<Utc>,
    /// The same as a clock of the schedule's zone shows it.
    pub local: DateTime<FixedOffset>,
    /// Whether the clock shows it twice.
    pub pass: Pass,
}

/// Which of the two times at which a clock that is put back shows a local time.
///
/// All local times of a schedule fire in the first pass. In the second pass either all fire or none: they do where the schedule goes on through
/// them, from the local time before the first to the next one behind the last, with pauses of at most twice what the clock is put back by (two
/// hours, almost everywhere). So what runs each hour or more often goes on without a pause, and what runs at fixed times of the day runs once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// It is shown once.
    Only,
    /// The first of two.
    First,
    /// The second of two.
    Second,
}

/// Occurrences that do not fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfired {
    /// When the first would be; where the clock is put forward over it, that moment.
    pub at: DateTime<Utc>,
    /// When the last would be.
    pub until: DateTime<Utc>,
    /// What the clock shows at the first, or would.
    pub first: NaiveDateTime,
    /// And at the last.
    pub last: NaiveDateTime,
    /// How many they are.
    pub count: u32,
}

impl Unfired {
    /// What the clock shows at them.
    pub(crate) fn shown(&self) -> String {
        let first = self.first.format("%Y-%m-%d %H:%M").to_string();
        match self.count {
            1 => first,
            count => format!("{first} to {} ({count})", self.last.format("%Y-%m-%d %H:%M")),
        }
    }
}

/// Where in a stretch of times that are shown twice the search is.
#[derive(Debug, Clone, Copy)]
enum Place {
    Plain,
    First(Stretch),
    Second(Stretch),
}

/// What comes after a time.
pub(super) struct Times<'a> {
    cron: &'a Cron,
    zone: Tz,
    /// The local time to look from, a whole minute.
    from: NaiveDateTime,
    place: Place,
}

const MINUTE: TimeDelta = TimeDelta::minutes(1);

impl<'a> Times<'a> {
    pub(super) fn new(cron: &'a Cron, zone: Tz, after: DateTime<Utc>) -> Times<'a> {
        let here = local(zone, after).naive_local();
        let minute = here.with_second(0).and_then(|time| time.with_nanosecond(0)).unwrap_or(here);
        let place = match shown(zone, here) {
            Shown::Twice { second, stretch, .. } if after >= second => Place::Second(stretch),
            Shown::Twice { stretch, .. } => Place::First(stretch),
            _ => Place::Plain,
        };
        Times { cron, zone, from: minute + MINUTE, place }
    }

    /// The local times in a stretch.
    fn within(&self, stretch: Stretch) -> impl Iterator<Item = NaiveDateTime> {
        let next = move |from| self.cron.from(from).filter(|time| *time < stretch.to);
        std::iter::successors(next(stretch.from), move |time| next(*time + MINUTE))
    }

    fn fires(&mut self, time: NaiveDateTime, at: DateTime<Utc>, pass: Pass) -> Coming {
        self.from = time + MINUTE;
        Coming::Fires(Occurrence { at, local: local(self.zone, at), pass })
    }

    /// The local times of a stretch as one; they are shown when `at` says.
    fn unfired(&self, stretch: Stretch, at: impl Fn(NaiveDateTime) -> DateTime<Utc>) -> Option<Unfired> {
        let first = self.within(stretch).next()?;
        let (last, count) = self.within(stretch).fold((first, 0), |(_, count), time| (time, count + 1));
        Some(Unfired { at: at(first), until: at(last), first, last, count })
    }

    /// Whether the second pass of a stretch fires too; see [`Pass`].
    fn goes_on(&self, stretch: Stretch, Unfired { first, last, .. }: Unfired) -> bool {
        let pause = (stretch.to - stretch.from) * 2;
        self.cron.from(stretch.to).is_some_and(|next| next - last <= pause)
            && self.cron.from(first - pause).is_some_and(|before| before < stretch.from)
    }

    /// Behind the first pass: into the second, or past it.
    fn end_of_first(&mut self, stretch: Stretch) -> Option<Coming> {
        let second = |time| match shown(self.zone, time) {
            Shown::Once(at) | Shown::Twice { second: at, .. } | Shown::Never { at, .. } => at,
        };
        let repeated = self.unfired(stretch, second);
        if repeated.is_some_and(|repeated| self.goes_on(stretch, repeated)) {
            (self.place, self.from) = (Place::Second(stretch), stretch.from);
            return None;
        }
        (self.place, self.from) = (Place::Plain, stretch.to);
        repeated.map(Coming::Repeated)
    }
}

impl Iterator for Times<'_> {
    type Item = Coming;

    fn next(&mut self) -> Option<Coming> {
        loop {
            let next = self.cron.from(self.from);
            match self.place {
                Place::First(stretch) => match next.filter(|time| *time < stretch.to) {
                    Some(time) => {
                        if let Shown::Twice { first, .. } = shown(self.zone, time) {
                            return Some(self.fires(time, first, Pass::First));
                        }
                        self.place = Place::Plain;
                    }
                    None => {
                        if let Some(repeated) = self.end_of_first(stretch) {
                            return Some(repeated);
                        }
                    }
                },
                Place::Second(stretch) => match next.filter(|time| *time < stretch.to) {
                    Some(time) => {
                        if let Shown::Twice { second, .. } = shown(self.zone, time) {
                            return Some(self.fires(time, second, Pass::Second));
                        }
                        self.place = Place::Plain;
                    }
                    None => (self.place, self.from) = (Place::Plain, stretch.to),
                },
                Place::Plain => {
                    let time = next?;
                    match shown(self.zone, time) {
                        Shown::Once(at) => return Some(self.fires(time, at, Pass::Only)),
                        Shown::Twice { stretch, .. } => self.place = Place::First(stretch),
                        Shown::Never { at, stretch } => {
                            let absent = self.unfired(Stretch { from: time, ..stretch }, |_| at);
                            self.from = stretch.to;
                            if let Some(absent) = absent {
                                return Some(Coming::Absent(absent));
                            }
                        }
                    }
                }
            }
        }
    }
}
