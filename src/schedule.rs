//! Schedules: `rate(n unit)`, as EventBridge defines it. The six-field `cron(...)` is not offered yet.

use std::time::Duration;

/// How often a schedule fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub Duration);

/// Checks an expression; the error says what would be right.
pub fn check(expression: &str) -> Result<Rate, String> {
    let form = "a schedule has the form rate(1 hour), rate(15 minutes) or rate(7 days)";
    if expression.starts_with("cron(") {
        return Err(format!("the schedule {expression:?}: cron is not available yet in this version; {form}"));
    }
    let inner = expression
        .strip_prefix("rate(")
        .and_then(|rest| rest.strip_suffix(')'))
        .ok_or_else(|| format!("the schedule {expression:?}: {form}"))?;
    let (value, unit) = inner.split_once(' ').ok_or_else(|| format!("the schedule {expression:?}: {form}"))?;
    let count = value
        .parse::<u64>()
        .ok()
        .filter(|count| *count > 0 && value.bytes().all(|b| b.is_ascii_digit()))
        .ok_or_else(|| format!("the rate {expression:?}: {value:?} is not a whole number above 0"))?;
    let seconds = match unit.trim_end_matches('s') {
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        _ => return Err(format!("the rate {expression:?}: the unit is minute, hour or day, with an s when the number is not 1")),
    };
    if unit.ends_with('s') != (count != 1) || unit.ends_with("ss") {
        return Err(format!("the rate {expression:?}: the unit has an s exactly when the number is not 1"));
    }
    count
        .checked_mul(seconds)
        .filter(|seconds| *seconds <= 366 * 86_400)
        .map(|seconds| Rate(Duration::from_secs(seconds)))
        .ok_or_else(|| format!("the rate {expression:?} is longer than a year"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_eventbridge() {
        assert_eq!(check("rate(1 hour)"), Ok(Rate(Duration::from_secs(3_600))));
        assert_eq!(check("rate(15 minutes)"), Ok(Rate(Duration::from_secs(900))));
        for wrong in [
            "rate(1 hours)",
            "rate(5 hour)",
            "rate(0 minutes)",
            "rate(-1 minutes)",
            "rate(+2 hours)",
            "rate(10 seconds)",
            "rate(5)",
            "hourly",
            "rate(2 hourss)",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cron_is_refused_with_the_reason() {
        assert!(check("cron(0 9 ? * MON *)").expect_err("refused").contains("not available yet"));
    }
}
