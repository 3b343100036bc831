//! `cron(minute hour day-of-month month day-of-week year)`: local times, in a calendar without time zones.

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike, Weekday};

use super::fields::{self, DaysOfMonth, DaysOfWeek, Field, Values};

/// The form that an error shows.
const SIX: &str = "minute hour day-of-month month day-of-week year";

/// When it fires, by a calendar and a clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cron {
    minutes: Values,
    hours: Values,
    days: Days,
    months: Values,
    years: Values,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Days {
    OfMonth(DaysOfMonth),
    OfWeek(DaysOfWeek),
}

impl Cron {
    /// Reads what stands between the brackets.
    pub(super) fn parse(text: &str) -> Result<Cron, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day_of_month, month, day_of_week, year] = fields[..] else {
            return Err(match fields[..] {
                [minute, hour, day_of_month, month, day_of_week] => five(minute, hour, day_of_month, month, day_of_week),
                _ => format!("cron has six fields, {SIX}, and here are {}", fields.len()),
            });
        };
        let values = |field: &Field, text: &str| field.values(text);
        let days = match (day_of_month, day_of_week) {
            ("?", "?") => Err("day-of-month and day-of-week are both ?: give days to one of them, * for every day".to_owned()),
            (days, "?") => DaysOfMonth::parse(days).map(Days::OfMonth),
            ("?", days) => DaysOfWeek::parse(days).map(Days::OfWeek),
            ("*", "*") => Err("day-of-month and day-of-week are both *: one of them has to be ?".to_owned()),
            ("*", _) => Err("day-of-week has a value: day-of-month has to be ? then".to_owned()),
            (_, "*") => Err("day-of-month has a value: day-of-week has to be ? then".to_owned()),
            _ => Err("day-of-month and day-of-week both have a value: make one of them ?, or two schedules of it".to_owned()),
        };
        let cron = Cron {
            minutes: values(&fields::MINUTE, minute)?,
            hours: values(&fields::HOUR, hour)?,
            months: values(&fields::MONTH, month)?,
            years: values(&fields::YEAR, year)?,
            days: days?,
        };
        if cron.from(NaiveDateTime::default()).is_none() {
            let day = if day_of_week == "?" { format!("day-of-month {day_of_month}") } else { format!("day-of-week {day_of_week}") };
            return Err(format!("no date has {day}, month {month} and year {year}: it never comes"));
        }
        Ok(cron)
    }

    fn falls_on(&self, date: NaiveDate) -> bool {
        match &self.days {
            Days::OfMonth(days) => days.contain(date),
            Days::OfWeek(days) => days.contain(date),
        }
    }

    /// The first local time from this one on; both are whole minutes.
    pub(super) fn from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let (mut date, mut time) = (from.date(), from.time());
        loop {
            let year = *self.years.range(u16::try_from(date.year().max(0)).ok()?..).next()?;
            if i32::from(year) > date.year() {
                (date, time) = (NaiveDate::from_ymd_opt(year.into(), 1, 1)?, NaiveTime::MIN);
            }
            if !self.months.contains(&small(date.month())) {
                let first = date.with_day(1)?;
                (date, time) = (first.checked_add_months(chrono::Months::new(1))?, NaiveTime::MIN);
                continue;
            }
            if self.falls_on(date)
                && let Some(time) = self.time_from(time)
            {
                return Some(date.and_time(time));
            }
            (date, time) = (date.succ_opt()?, NaiveTime::MIN);
        }
    }

    fn time_from(&self, from: NaiveTime) -> Option<NaiveTime> {
        let (hour, minute) = (small(from.hour()), small(from.minute()));
        let same = self.hours.contains(&hour).then(|| self.minutes.range(minute..).next()).flatten();
        let (hour, minute) = match same {
            Some(minute) => (hour, *minute),
            None => (*self.hours.range(hour + 1..).next()?, *self.minutes.first()?),
        };
        NaiveTime::from_hms_opt(hour.into(), minute.into(), 0)
    }
}

/// A number of the calendar; all of them are small.
fn small(number: u32) -> u16 {
    number.try_into().unwrap_or(u16::MAX)
}

fn is_weekend(day: Weekday) -> bool {
    matches!(day, Weekday::Sat | Weekday::Sun)
}

fn last_of_month(date: NaiveDate) -> u16 {
    date.num_days_in_month().into()
}

impl DaysOfMonth {
    fn contain(&self, date: NaiveDate) -> bool {
        let (day, last) = (small(date.day()), last_of_month(date));
        self.days.contains(&day)
            || self.last && day == last
            || self.last_weekday && !is_weekend(date.weekday()) && (day + 1..=last).all(|later| is_weekend(weekday(date, later)))
            || self.nearest_weekday.iter().any(|wanted| *wanted <= last && nearest_weekday(date, *wanted, last) == day)
    }
}

/// The weekday of another day of the same month.
fn weekday(date: NaiveDate, day: u16) -> Weekday {
    date.with_day(day.into()).map_or(date.weekday(), |date| date.weekday())
}

/// The day from Monday to Friday that is nearest to this one, in the same month.
fn nearest_weekday(date: NaiveDate, wanted: u16, last: u16) -> u16 {
    match weekday(date, wanted) {
        Weekday::Sat if wanted == 1 => 3,
        Weekday::Sat => wanted - 1,
        Weekday::Sun if wanted == last => wanted - 2,
        Weekday::Sun => wanted + 1,
        _ => wanted,
    }
}

impl DaysOfWeek {
    fn contain(&self, date: NaiveDate) -> bool {
        let (day, weekday) = (small(date.day()), small(date.weekday().num_days_from_sunday()) + 1);
        self.days.contains(&weekday)
            || self.last.contains(&weekday) && day + 7 > last_of_month(date)
            || self.nth == Some((weekday, (day - 1) / 7 + 1))
    }
}

/// What to write instead of the five fields of other crons, where Sunday is 0 or 7 and Monday 1.
fn five(minute: &str, hour: &str, day_of_month: &str, month: &str, day_of_week: &str) -> String {
    let begin = format!("cron has six fields, {SIX}, and here are five, as in other crons");
    let shifted = |digit: char| digit.to_digit(10).map_or_else(|| digit.to_string(), |day| (day % 7 + 1).to_string());
    let (day_of_month, day_of_week) = match (day_of_month, day_of_week) {
        (days, "*") => (days, "?".to_owned()),
        ("*", days) => {
            let (day, which) = days.split_at(days.find('#').unwrap_or(days.len()));
            ("?", day.chars().map(shifted).collect::<String>() + which)
        }
        _ => {
            return format!(
                "{begin}; since day-of-month and day-of-week both have a value, make two schedules, each with ? in the other one"
            );
        }
    };
    let text = format!("{minute} {hour} {day_of_month} {month} {day_of_week} *");
    match Cron::parse(&text) {
        Ok(_) => format!("{begin}: write cron({text}), where 1 is Sunday"),
        Err(problem) => format!("{begin}; besides, {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Cron::parse(text).err().unwrap_or_else(|| panic!("{text} is accepted"))
    }

    /// The first local times from 2026-06-01, a Monday, on.
    fn first(text: &str, count: usize) -> String {
        let cron = Cron::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        let mut from = NaiveDate::from_ymd_opt(2026, 6, 1).and_then(|date| date.and_hms_opt(0, 0, 0)).expect("a time");
        let mut times = Vec::new();
        while times.len() < count
            && let Some(next) = cron.from(from)
        {
            times.push(next.format("%y-%m-%d %H:%M").to_string());
            from = next + chrono::TimeDelta::minutes(1);
        }
        times.join(", ")
    }

    #[test]
    fn the_examples_of_aws_mean_what_aws_says() {
        for (text, times) in [
            ("0 10 * * ? *", "26-06-01 10:00, 26-06-02 10:00"),
            ("15 12 * * ? *", "26-06-01 12:15, 26-06-02 12:15"),
            ("0 18 ? * MON-FRI *", "26-06-01 18:00, 26-06-02 18:00, 26-06-03 18:00, 26-06-04 18:00, 26-06-05 18:00, 26-06-08 18:00"),
            ("0 8 1 * ? *", "26-06-01 08:00, 26-07-01 08:00"),
            ("0/15 * * * ? *", "26-06-01 00:00, 26-06-01 00:15, 26-06-01 00:30, 26-06-01 00:45, 26-06-01 01:00"),
            ("0/5 8-17 ? * MON-FRI *", "26-06-01 08:00, 26-06-01 08:05"),
            // From Monday evening into the night, in one range.
            (
                "0/30 20-2 ? * MON-FRI *",
                "26-06-01 00:00, 26-06-01 00:30, 26-06-01 01:00, 26-06-01 01:30, 26-06-01 02:00, 26-06-01 02:30, 26-06-01 20:00",
            ),
            ("0 9 ? * 2#1 *", "26-06-01 09:00, 26-07-06 09:00"),
            ("0 9 3W * ? *", "26-06-03 09:00, 26-07-03 09:00, 26-08-03 09:00, 26-09-03 09:00, 26-10-02 09:00"),
        ] {
            assert_eq!(first(text, times.split(", ").count()), times, "{text}");
        }
    }

    #[test]
    fn days_are_counted_as_aws_counts_them() {
        for (text, times) in [
            // 1 is Sunday; the 7th of June is one.
            ("0 0 ? * 1 *", "26-06-07 00:00, 26-06-14 00:00"),
            ("0 0 ? * 7 *", "26-06-06 00:00, 26-06-13 00:00"),
            ("0 0 ? * sun *", "26-06-07 00:00, 26-06-14 00:00"),
            ("0 0 ? * 2,4,FRI *", "26-06-01 00:00, 26-06-03 00:00, 26-06-05 00:00, 26-06-08 00:00"),
            // Ranges go on behind their end.
            ("0 0 ? * SAT-SUN *", "26-06-06 00:00, 26-06-07 00:00, 26-06-13 00:00"),
            ("0 0 ? * 7-1 *", "26-06-06 00:00, 26-06-07 00:00, 26-06-13 00:00"),
            ("0 0 ? * FRI-MON *", "26-06-01 00:00, 26-06-05 00:00, 26-06-06 00:00, 26-06-07 00:00, 26-06-08 00:00, 26-06-12 00:00"),
            ("0 0 1 NOV-FEB ? *", "26-11-01 00:00, 26-12-01 00:00, 27-01-01 00:00, 27-02-01 00:00, 27-11-01 00:00"),
            (
                "0 0 30-2 * ? *",
                "26-06-01 00:00, 26-06-02 00:00, 26-06-30 00:00, 26-07-01 00:00, 26-07-02 00:00, 26-07-30 00:00, 26-07-31 00:00",
            ),
            ("50-10/10 0 1 * ? *", "26-06-01 00:00, 26-06-01 00:10, 26-06-01 00:50"),
            // The last day of the month, or of the week; the last Friday; the second Tuesday.
            ("0 0 L * ? *", "26-06-30 00:00, 26-07-31 00:00"),
            ("0 0 L FEB ? *", "27-02-28 00:00, 28-02-29 00:00"),
            ("0 0 ? * L *", "26-06-06 00:00, 26-06-13 00:00"),
            ("0 0 ? * 6L *", "26-06-26 00:00, 26-07-31 00:00"),
            ("0 0 ? * FRIL *", "26-06-26 00:00, 26-07-31 00:00"),
            ("0 0 ? * 3#2 *", "26-06-09 00:00, 26-07-14 00:00"),
            ("0 0 ? * TUE#5 *", "26-06-30 00:00, 26-09-29 00:00"),
            ("0 0 1,L * ? *", "26-06-01 00:00, 26-06-30 00:00, 26-07-01 00:00"),
            // The nearest day from Monday to Friday, never in another month: the 1st of August is a Saturday, the 31st of January a Sunday.
            ("0 0 1W AUG ? *", "26-08-03 00:00, 27-08-02 00:00"),
            ("0 0 31W MAY ? *", "27-05-31 00:00, 28-05-31 00:00, 29-05-31 00:00, 30-05-31 00:00, 31-05-30 00:00, 32-05-31 00:00"),
            ("0 0 31W JAN ? *", "27-01-29 00:00, 28-01-31 00:00"),
            ("0 0 15W 8,11 ? *", "26-08-14 00:00, 26-11-16 00:00"),
            ("0 0 LW 1,5,8 ? *", "26-08-31 00:00, 27-01-29 00:00, 27-05-31 00:00"),
            ("0 0 30W 2,6 ? *", "26-06-30 00:00, 27-06-30 00:00"),
            // Years.
            ("0 0 29 2 ? *", "28-02-29 00:00, 32-02-29 00:00"),
            ("0 0 1 1 ? 2030-2040/5", "30-01-01 00:00, 35-01-01 00:00, 40-01-01 00:00"),
            ("0 0 1 1 ? 2199", "99-01-01 00:00"),
            ("1/10 0 1 6 ? 2026", "26-06-01 00:01, 26-06-01 00:11, 26-06-01 00:21, 26-06-01 00:31, 26-06-01 00:41, 26-06-01 00:51"),
            ("0 0 1 1 ? 2020", ""),
        ] {
            let count = if times.is_empty() { 1 } else { times.split(", ").count() };
            assert_eq!(first(text, count), times, "{text}");
        }
    }

    #[test]
    fn what_aws_does_not_take_is_refused_by_the_name_of_the_field() {
        for (text, words) in [
            ("60 0 * * ? *", "minute: \"60\" is not from 0 to 59"),
            ("0 24 * * ? *", "hour: \"24\""),
            ("0 0 0 * ? *", "day-of-month: \"0\" is not from 1 to 31"),
            ("0 0 32 * ? *", "day-of-month: \"32\""),
            ("0 0 1 13 ? *", "month: \"13\" is not from 1 to 12, or JAN to DEC"),
            ("0 0 1 JUNE ? *", "month: \"JUNE\""),
            ("0 0 ? * 0 *", "day-of-week: \"0\" is not from 1 (Sunday) to 7, or SUN to SAT"),
            ("0 0 ? * 8 *", "day-of-week: \"8\""),
            ("0 0 ? * 2/2 *", "day-of-week: it takes no steps"),
            ("0 0 * * ? 1969", "year: \"1969\" is not from 1970 to 2199"),
            ("0 0 * * ? 2200", "year: \"2200\""),
            ("0 0 * * ? 2030-2029", "year: the range \"2030-2029\" ends before it begins"),
            ("0 0 * * * *", "both *"),
            ("0 0 ? * ? *", "both ?"),
            ("0 0 1 * 2 *", "both have a value"),
            ("0 0 * * 2 *", "day-of-month has to be ?"),
            ("0 0 1 * * *", "day-of-week has to be ?"),
            ("? 0 * * ? *", "minute: only day-of-month and day-of-week take ?"),
            ("0 0 1,? * ? *", "day-of-month: ? stands alone"),
            ("0 0 ? * 3#1,6#3 *", "# may stand there once only"),
            ("0 0 ? * 3#6 *", "behind # stands 1 to 5"),
            ("0 0 ? * 3#0 *", "behind # stands 1 to 5"),
            ("0 0 ? * #2 *", "day-of-week: \"\""),
            ("0 0 W * ? *", "before W stands one day"),
            ("0 0 1-5W * ? *", "before W stands one day"),
            ("0 0 32W * ? *", "before W stands one day"),
            ("0 0 L-3 * ? *", "day-of-month: \"L\""),
            ("0 L * * ? *", "hour: \"L\""),
            ("0 0 ? * 2W *", "day-of-week: \"2W\""),
            ("0 0 3#1 * ? *", "day-of-month: \"3#1\""),
            ("0/0 0 * * ? *", "minute: the step"),
            ("0/60 0 * * ? *", "minute: the step"),
            ("/15 0 * * ? *", "minute: \"\""),
            ("0/ 0 * * ? *", "minute: the step"),
            ("1-2-3 0 * * ? *", "minute: \"2-3\""),
            ("1,,2 0 * * ? *", "minute: \"1,,2\" has an empty part"),
            ("-1 0 * * ? *", "minute: \"\""),
            ("+1 0 * * ? *", "minute: '+'"),
            ("0 0 * * ? * *", "here are 7"),
            ("0 0 *", "here are 3"),
            ("", "here are 0"),
        ] {
            assert!(refused(text).contains(words), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn a_date_that_never_comes_is_refused() {
        for text in ["0 0 31 2 ? *", "0 0 30 FEB ? *", "0 0 31 4,6,9,11 ? *", "0 0 29 2 ? 2027", "0 0 31W 2 ? *", "0 0 29 2 ? 2100"] {
            assert!(refused(text).contains("it never comes") && refused(text).contains("day-of-month"), "{text}: {}", refused(text));
        }
        assert!(refused("0 0 ? 2 2#5 2027").contains("day-of-week 2#5"), "four Mondays in that February");
    }

    #[test]
    fn five_fields_are_answered_with_the_six() {
        for (text, words) in [
            ("0 9 * * 1", "write cron(0 9 ? * 2 *)"),
            ("0 9 * * 0", "write cron(0 9 ? * 1 *)"),
            ("0 9 * * 7", "write cron(0 9 ? * 1 *)"),
            ("0 9 * * MON-FRI", "write cron(0 9 ? * MON-FRI *)"),
            ("0 9 * * 1-5", "write cron(0 9 ? * 2-6 *)"),
            ("0 9 * * 1#3", "write cron(0 9 ? * 2#3 *)"),
            ("*/5 * * * *", "write cron(*/5 * * * ? *)"),
            ("0 0 1 * 2", "make two schedules"),
            ("0 0 31 2 *", "it never comes"),
        ] {
            let said = refused(text);
            assert!(said.contains("six fields") && said.contains(words), "{text}: {said}");
        }
    }
}
