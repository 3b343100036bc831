//! The fields of a cron expression, each read by itself.

use std::collections::BTreeSet;

/// What a field may hold.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) low: u16,
    pub(super) high: u16,
    /// Names for values, from the lowest on.
    names: &'static [&'static str],
    /// Whether it takes `/`.
    steps: bool,
    /// Whether a range may go on behind the highest value with the lowest.
    wraps: bool,
}

pub(super) const MINUTE: Field = Field { name: "minute", low: 0, high: 59, names: &[], steps: true, wraps: true };
pub(super) const HOUR: Field = Field { name: "hour", high: 23, ..MINUTE };
pub(super) const DAY_OF_MONTH: Field = Field { name: "day-of-month", low: 1, high: 31, ..MINUTE };
pub(super) const MONTH: Field = Field {
    name: "month",
    low: 1,
    high: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    ..MINUTE
};
pub(super) const DAY_OF_WEEK: Field =
    Field { name: "day-of-week", low: 1, high: 7, names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"], steps: false, ..MINUTE };
pub(super) const YEAR: Field = Field { name: "year", low: 1970, high: 2199, wraps: false, ..MINUTE };

pub(super) type Values = BTreeSet<u16>;

/// On which days of a month.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DaysOfMonth {
    pub(super) days: Values,
    /// `L`: the last day.
    pub(super) last: bool,
    /// `LW`: the last day from Monday to Friday.
    pub(super) last_weekday: bool,
    /// `15W`: the day from Monday to Friday that is nearest to this one, in the same month.
    pub(super) nearest_weekday: Values,
}

/// On which days of a week; 1 is Sunday.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DaysOfWeek {
    pub(super) days: Values,
    /// `6L`: the last of the month.
    pub(super) last: Values,
    /// `3#2`: this day, and which of the month.
    pub(super) nth: Option<(u16, u16)>,
}

impl Field {
    fn problem(&self, problem: impl std::fmt::Display) -> String {
        format!("the field {}: {problem}", self.name)
    }

    fn range(&self) -> String {
        let named = self.names.first().zip(self.names.last()).map(|(first, last)| format!(", or {first} to {last}"));
        let sunday = if self.names.first() == Some(&"SUN") { " (Sunday)" } else { "" };
        format!("{}{sunday} to {}{}", self.low, self.high, named.unwrap_or_default())
    }

    fn value(&self, text: &str) -> Result<u16, String> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let number = if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse::<u16>().ok() } else { None };
        named
            .and_then(|place| u16::try_from(place).ok())
            .map(|place| place + self.low)
            .or(number)
            .filter(|value| (self.low..=self.high).contains(value))
            .ok_or_else(|| self.problem(format!("{text:?} is not from {}", self.range())))
    }

    /// One part of a list: `*`, a value, a range, each perhaps with a step.
    fn part(&self, text: &str, into: &mut Values) -> Result<(), String> {
        let (base, step) = match text.split_once('/') {
            None => (text, None),
            Some(_) if !self.steps => return Err(self.problem("it takes no steps (/)")),
            Some((base, step)) => {
                let step = step.parse::<u16>().ok().filter(|step| (1..=self.high).contains(step));
                (base, Some(step.ok_or_else(|| self.problem(format!("the step of {text:?} is not from 1 to {}", self.high)))?))
            }
        };
        let (from, to) = match base.split_once('-') {
            _ if base == "*" => (self.low, self.high),
            Some((from, to)) => (self.value(from)?, self.value(to)?),
            // A value with a step goes on to the end.
            None => (self.value(base)?, if step.is_some() { self.high } else { self.value(base)? }),
        };
        let size = self.high - self.low + 1;
        let length = match to.checked_sub(from) {
            Some(length) => length,
            None if self.wraps => to + size - from,
            None => return Err(self.problem(format!("the range {base:?} ends before it begins"))),
        };
        into.extend((0..=length).step_by(step.unwrap_or(1).into()).map(|distance| (from - self.low + distance) % size + self.low));
        Ok(())
    }

    fn parts<'a>(&self, text: &'a str) -> Result<impl Iterator<Item = &'a str> + use<'a>, String> {
        if text.split(',').any(str::is_empty) {
            return Err(self.problem(format!("{text:?} has an empty part")));
        }
        if let Some(odd) = text.chars().find(|letter| !letter.is_ascii_alphanumeric() && !",-*/#?".contains(*letter)) {
            return Err(self.problem(format!("{odd:?} has no meaning here")));
        }
        if text.contains('?') {
            return Err(self.problem(match self.name {
                "day-of-month" | "day-of-week" => "? stands alone",
                _ => "only day-of-month and day-of-week take ?",
            }));
        }
        Ok(text.split(','))
    }

    /// The values of a plain field.
    pub(super) fn values(&self, text: &str) -> Result<Values, String> {
        let mut values = Values::new();
        for part in self.parts(text)? {
            self.part(part, &mut values)?;
        }
        Ok(values)
    }
}

impl DaysOfMonth {
    pub(super) fn parse(text: &str) -> Result<DaysOfMonth, String> {
        let field = DAY_OF_MONTH;
        let mut found = DaysOfMonth::default();
        for part in field.parts(text)? {
            match part.to_ascii_uppercase().as_str() {
                "L" => found.last = true,
                "LW" => found.last_weekday = true,
                upper => {
                    match upper.strip_suffix('W') {
                        Some(day) => drop(found.nearest_weekday.insert(
                            field.value(day).map_err(|_| field.problem(format!("{part:?}: before W stands one day, 1 to 31, or L")))?,
                        )),
                        None => field.part(part, &mut found.days)?,
                    }
                }
            }
        }
        Ok(found)
    }
}

impl DaysOfWeek {
    pub(super) fn parse(text: &str) -> Result<DaysOfWeek, String> {
        let field = DAY_OF_WEEK;
        let mut found = DaysOfWeek::default();
        for part in field.parts(text)? {
            let upper = part.to_ascii_uppercase();
            if let Some((day, which)) = upper.split_once('#') {
                let which = which.parse::<u16>().ok().filter(|which| (1..=5).contains(which));
                let which = which.ok_or_else(|| field.problem(format!("{part:?}: behind # stands 1 to 5, which of the month it is")))?;
                if found.nth.replace((field.value(day)?, which)).is_some() {
                    return Err(field.problem("# may stand there once only"));
                }
            } else if upper == "L" {
                found.days.insert(field.high);
            } else if let Some(day) = upper.strip_suffix('L') {
                found.last.insert(field.value(day)?);
            } else {
                field.part(part, &mut found.days)?;
            }
        }
        Ok(found)
    }
}
