//! Time zones: from a local time to the instants at which clocks there show it, none, one or two.

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::nearest::distance;

/// Local times in a row that a clock does not show, or shows twice: from the first one up to the first behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) from: NaiveDateTime,
    pub(super) to: NaiveDateTime,
}

/// When a clock shows a local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Once(DateTime<Utc>),
    /// The clock is put back over it.
    Twice {
        first: DateTime<Utc>,
        second: DateTime<Utc>,
        stretch: Stretch,
    },
    /// The clock is put forward over it, at this instant.
    Never {
        at: DateTime<Utc>,
        stretch: Stretch,
    },
}

/// A zone by its IANA name, or UTC where it is empty; the error names the nearest.
pub(super) fn parse(name: &str) -> Result<Tz, String> {
    if name.is_empty() {
        return Ok(Tz::UTC);
    }
    name.parse().map_err(|_| {
        let wanted = name.to_lowercase().replace(' ', "_");
        let mut near: Vec<(usize, &str)> = TZ_VARIANTS
            .iter()
            .map(|zone| {
                let zone = zone.name();
                let known = zone.to_lowercase();
                let city = known.rsplit('/').next().unwrap_or_default();
                (distance(&known, &wanted).min(distance(city, wanted.rsplit('/').next().unwrap_or_default()) * 2), zone)
            })
            .collect();
        near.sort_unstable();
        let names: Vec<&str> = near.iter().take(3).map(|(_, name)| *name).collect();
        format!("the time zone {name:?} is not one of the IANA names; did you mean {}?", names.join(", "))
    })
}

fn minutes(count: i64) -> TimeDelta {
    TimeDelta::minutes(count)
}

fn whole_minute(time: NaiveDateTime) -> NaiveDateTime {
    time.with_second(0).and_then(|time| time.with_nanosecond(0)).unwrap_or(time)
}

/// The last whole minute from here on, or back, for which this is so.
fn last_while(from: NaiveDateTime, step: TimeDelta, so: impl Fn(NaiveDateTime) -> bool) -> NaiveDateTime {
    let mut last = from;
    while so(last + step) {
        last += step;
    }
    last
}

/// When a clock of the zone shows this.
pub(super) fn shown(zone: Tz, time: NaiveDateTime) -> Shown {
    let mapped = |time: NaiveDateTime| zone.offset_from_local_datetime(&time);
    let instant = |offset: chrono::FixedOffset| (time - offset).and_utc();
    let stretch = |like: fn(&MappedLocalTime<<Tz as TimeZone>::Offset>) -> bool| {
        let so = |time| like(&mapped(time));
        let inside = whole_minute(time);
        Stretch { from: last_while(inside, minutes(-1), so), to: last_while(inside, minutes(1), so) + minutes(1) }
    };
    match mapped(time) {
        MappedLocalTime::Single(offset) => Shown::Once(instant(offset.fix())),
        MappedLocalTime::Ambiguous(one, other) => {
            let (one, other) = (instant(one.fix()), instant(other.fix()));
            let stretch = stretch(|mapped| matches!(mapped, MappedLocalTime::Ambiguous(..)));
            Shown::Twice { first: one.min(other), second: one.max(other), stretch }
        }
        MappedLocalTime::None => {
            let stretch = stretch(|mapped| matches!(mapped, MappedLocalTime::None));
            let before = stretch.from - minutes(1);
            // The minute before is shown, for the last time where it is shown twice.
            let at = mapped(before).latest().map_or(before.and_utc(), |offset| (before - offset.fix()).and_utc());
            Shown::Never { at: at + minutes(1), stretch }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_zone_is_answered_with_the_nearest_names() {
        assert_eq!(parse(""), Ok(Tz::UTC));
        assert_eq!(parse("America/Sao_Paulo"), Ok(Tz::America__Sao_Paulo));
        for (wrong, right) in [
            ("America/NewYork", "America/New_York"),
            ("america/new_york", "America/New_York"),
            ("New York", "America/New_York"),
            ("Europe/Lisboa", "Europe/Lisbon"),
            ("Sao_Paulo", "America/Sao_Paulo"),
            ("UCT+1", "UCT"),
        ] {
            let said = parse(wrong).expect_err(wrong);
            assert!(said.contains(right) && said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn clocks_that_are_put_forward_or_back_show_a_time_never_or_twice() {
        let at = |text: &str| text.parse::<NaiveDateTime>().expect("a local time");
        let utc = |text: &str| text.parse::<DateTime<Utc>>().expect("a time");
        let stretch = |from: &str, to: &str| Stretch { from: at(from), to: at(to) };
        let zone = Tz::America__New_York;
        assert_eq!(shown(zone, at("2026-07-01T12:00:00")), Shown::Once(utc("2026-07-01T16:00:00Z")));
        assert_eq!(
            shown(zone, at("2026-03-08T02:30:00")),
            Shown::Never { at: utc("2026-03-08T07:00:00Z"), stretch: stretch("2026-03-08T02:00:00", "2026-03-08T03:00:00") }
        );
        assert_eq!(
            shown(zone, at("2026-11-01T01:59:00")),
            Shown::Twice {
                first: utc("2026-11-01T05:59:00Z"),
                second: utc("2026-11-01T06:59:00Z"),
                stretch: stretch("2026-11-01T01:00:00", "2026-11-01T02:00:00")
            }
        );
        for edge in ["2026-11-01T00:59:00", "2026-11-01T02:00:00", "2026-03-08T01:59:00", "2026-03-08T03:00:00"] {
            assert!(matches!(shown(zone, at(edge)), Shown::Once(_)), "{edge}");
        }
        // Half an hour, and a whole day.
        let Shown::Twice { stretch: half, .. } = shown(Tz::Australia__Lord_Howe, at("2026-04-05T01:45:00")) else { panic!("twice") };
        assert_eq!(half, stretch("2026-04-05T01:30:00", "2026-04-05T02:00:00"));
        let Shown::Never { stretch: day, at: jump } = shown(Tz::Pacific__Apia, at("2011-12-30T12:00:00")) else { panic!("never") };
        assert_eq!((day, jump), (stretch("2011-12-30T00:00:00", "2011-12-31T00:00:00"), utc("2011-12-30T10:00:00Z")));
    }
}
