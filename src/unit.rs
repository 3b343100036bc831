//! Units: what a handler author declares next to an async function, found without a list kept by hand.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::BoxFuture;

use crate::{failure::TaskError, queue::Queue, run::TaskRun, schedule};

/// What starts a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `work.dispatch` by its name.
    Task,
    /// `work.publish` of exactly this type and version.
    Subscriber {
        /// Type of the event.
        event: &'static str,
        /// Version of the event.
        version: i32,
    },
}

/// How the runtime calls a handler: the payload as text, the run, and the outcome as JSON text.
pub type Handler = for<'a> fn(&'a str, &'a TaskRun) -> BoxFuture<'a, Result<Option<String>, TaskError>>;

/// A task or a subscriber with its options, as declared. [`task!`](crate::task) and [`subscriber!`](crate::subscriber) make them.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// What starts it.
    pub kind: Kind,
    /// Dot-separated segments of `[a-z][a-z0-9_]*`, at most 64 characters, unique.
    pub name: &'static str,
    /// `critical`, `default`, `bulk` or `maintenance`.
    pub queue: &'static str,
    /// Runs at a time in one process; default 4.
    pub concurrency: u32,
    /// How long one attempt may take, in seconds; default 60, at most 11 hours.
    pub timeout_seconds: u32,
    /// `tenant` (default), `platform` or `system`.
    pub context: &'static str,
    /// For scheduled tasks: `skip` (default) or `allow` a run beside an unfinished one.
    pub overlap: &'static str,
    /// `rate(1 hour)` or `cron(0 9 ? * MON-FRI *)`, or empty.
    pub schedule: &'static str,
    /// IANA name of the time zone of the schedule; empty is UTC.
    pub schedule_timezone: &'static str,
    /// The handler.
    pub handler: Handler,
    /// Whether the payload type takes this JSON.
    pub reads: fn(&str) -> Result<(), TaskError>,
    /// Where it is declared, for messages.
    pub place: &'static str,
    /// The package it is declared in.
    pub package: &'static str,
}

impl Unit {
    /// A unit with the default options; the macros fill in the rest.
    pub const fn new(kind: Kind, handler: Handler, place: &'static str, package: &'static str) -> Unit {
        Unit {
            kind,
            name: "",
            queue: "",
            concurrency: 4,
            timeout_seconds: 60,
            context: "tenant",
            overlap: "skip",
            schedule: "",
            schedule_timezone: "",
            handler,
            reads: |_| Ok(()),
            place,
            package,
        }
    }

    /// Whether it ships with this crate, and so is in every program.
    pub(crate) fn ships(&self) -> bool {
        self.package == env!("CARGO_PKG_NAME")
    }
}

inventory::collect!(Unit);

/// Declares a task: its payload, handler and options.
///
/// ```
/// use monalisa::{TaskError, TaskRun};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct GenerateReport { report_id: i64 }
///
/// monalisa::task! {
///     payload: GenerateReport,
///     handler: generate_report,
///     name: "reports.generate",
///     queue: "default",
///     timeout_seconds: 300, // optional, as are concurrency, context, overlap, schedule, schedule_timezone
/// }
///
/// async fn generate_report(payload: GenerateReport, run: &TaskRun) -> Result<(), TaskError> {
///     let effect = run.transaction().await?;
///     effect.execute("insert into reports (id) values ($1)", &[&payload.report_id]).await?;
///     Ok(())
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! task {
    (payload: $payload:ty, handler: $handler:path, name: $name:expr, queue: $queue:expr
     $(, $option:ident : $value:expr)* $(,)?) => {
        impl $crate::Task for $payload {
            const NAME: &'static str = $name;
        }
        $crate::__unit!($crate::Kind::Task, $payload, $handler, $name, $queue $(, $option: $value)*);
    };
    ($($other:tt)*) => {
        ::std::compile_error!("task! takes `payload`, `handler`, `name` and `queue` in this order, then options as `timeout_seconds: 300`");
    };
}

/// Declares a subscriber of an event: each publish gives it a run of its own.
///
/// ```
/// use monalisa::{TaskError, TaskRun};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct InvitationCreated { invitation_id: i64 }
///
/// impl monalisa::Event for InvitationCreated {
///     const TYPE: &'static str = "invitations.created";
/// }
///
/// monalisa::subscriber! {
///     event: InvitationCreated,
///     handler: count_invitation,
///     name: "statistics.count_invitation",
///     queue: "default",
/// }
///
/// async fn count_invitation(event: InvitationCreated, run: &TaskRun) -> Result<(), TaskError> {
///     run.transaction().await?.execute("update statistics set invitations = invitations + 1", &[]).await?;
///     Ok(())
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! subscriber {
    (event: $event:ty, handler: $handler:path, name: $name:expr, queue: $queue:expr
     $(, $option:ident : $value:expr)* $(,)?) => {
        $crate::__unit!(
            $crate::Kind::Subscriber { event: <$event as $crate::Event>::TYPE, version: <$event as $crate::Event>::VERSION },
            $event, $handler, $name, $queue $(, $option: $value)*
        );
    };
    ($($other:tt)*) => {
        ::std::compile_error!("subscriber! takes `event`, `handler`, `name` and `queue` in this order, then options as `timeout_seconds: 300`");
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __unit {
    ($kind:expr, $payload:ty, $handler:path, $name:expr, $queue:expr $(, $option:ident : $value:expr)*) => {
        const _: () = {
            fn call<'a>(
                payload: &'a str,
                run: &'a $crate::TaskRun,
            ) -> $crate::__private::BoxFuture<'a, ::std::result::Result<::std::option::Option<::std::string::String>, $crate::TaskError>> {
                ::std::boxed::Box::pin(async move {
                    let payload: $payload = $crate::__private::decode(payload)?;
                    $crate::__private::encode($handler(payload, run).await)
                })
            }
            fn reads(payload: &str) -> ::std::result::Result<(), $crate::TaskError> {
                $crate::__private::decode::<$payload>(payload).map(drop)
            }
            $crate::__private::inventory::submit! {
                $crate::Unit {
                    name: $name,
                    queue: $queue,
                    reads,
                    $($option: $value,)*
                    ..$crate::Unit::new($kind, call, concat!(file!(), ":", line!()), env!("CARGO_PKG_NAME"))
                }
            }
        };
    };
}

/// The units of this program, checked.
#[derive(Debug, Clone, Default)]
pub struct Units(BTreeMap<&'static str, &'static Unit>);

impl Unit {
    /// How long an attempt may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.into())
    }
}

impl Units {
    /// Finds every unit linked into this program and checks them; the error lists all problems, each with its place.
    pub fn discover() -> Result<Units, String> {
        Units::check(inventory::iter::<Unit>())
    }

    fn check(found: impl IntoIterator<Item = &'static Unit>) -> Result<Units, String> {
        let mut units: BTreeMap<&'static str, &'static Unit> = BTreeMap::new();
        let mut contexts: BTreeMap<(&str, i32), &'static Unit> = BTreeMap::new();
        let mut problems = Vec::new();
        for unit in found {
            problems.extend(unit_problems(unit).into_iter().map(|problem| format!("{}: {}: {problem}", unit.place, unit.name)));
            if let Some(other) = units.insert(unit.name, unit) {
                problems.push(format!("{}: {}: the name is taken by the unit at {}", unit.place, unit.name, other.place));
            }
            if let Kind::Subscriber { event, version } = unit.kind {
                let first = *contexts.entry((event, version)).or_insert(unit);
                if first.context != unit.context {
                    problems.push(format!(
                        "{}: {}: its context is {}, but {} subscribes to the same event with context {}",
                        unit.place, unit.name, unit.context, first.name, first.context
                    ));
                }
            }
        }
        if problems.is_empty() { Ok(Units(units)) } else { Err(problems.join("\n")) }
    }

    /// The unit of this name.
    pub fn get(&self, name: &str) -> Option<&'static Unit> {
        self.0.get(name).copied()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &'static Unit> + '_ {
        self.0.values().copied()
    }
}

fn unit_problems(unit: &Unit) -> Vec<String> {
    let mut problems = Vec::new();
    if !valid_name(unit.name) || unit.name.len() > 64 {
        problems.push("a name is dot-separated segments of [a-z][a-z0-9_]*, at most 64 characters".to_owned());
    }
    if let Kind::Subscriber { event, version } = unit.kind {
        if !valid_name(event) {
            problems.push(format!("the event type {event:?} is not dot-separated segments of [a-z][a-z0-9_]*"));
        }
        if version < 1 {
            problems.push("the version of an event is 1 or more".to_owned());
        }
        if !unit.schedule.is_empty() {
            problems.push("a subscriber has no schedule; schedule a task".to_owned());
        }
    }
    if let Err(problem) = unit.queue.parse::<Queue>() {
        problems.push(problem);
    }
    if !["tenant", "platform", "system"].contains(&unit.context) {
        problems.push(format!("the context {:?} is none of tenant, platform and system", unit.context));
    }
    if !["skip", "allow"].contains(&unit.overlap) {
        problems.push(format!("the overlap {:?} is neither skip nor allow", unit.overlap));
    }
    if !(1..=1_000).contains(&unit.concurrency) {
        problems.push("the concurrency is 1 to 1000".to_owned());
    }
    if !(1..=39_600).contains(&unit.timeout_seconds) {
        problems.push("timeout_seconds is 1 to 39600 (11 hours)".to_owned());
    }
    if !unit.schedule.is_empty() {
        if unit.context == "tenant" {
            problems.push(
                "a scheduled task has no tenant: its context is platform or system; for work of tenants let it dispatch a task for each"
                    .to_owned(),
            );
        }
        if let Err(problem) = (unit.reads)("{}") {
            problems.push(format!("a schedule fires it with the payload {{}}, and {}; give each field #[serde(default)]", problem.text()));
        }
        if let Err(problem) = schedule::check(unit.schedule, unit.schedule_timezone) {
            problems.push(problem);
        }
    } else if !unit.schedule_timezone.is_empty() {
        problems.push("it has a schedule_timezone and no schedule".to_owned());
    }
    problems
}

fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.split('.').all(|segment| {
            segment.starts_with(|c: char| c.is_ascii_lowercase())
                && segment.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing<'a>(_: &'a str, _: &'a TaskRun) -> BoxFuture<'a, Result<Option<String>, TaskError>> {
        Box::pin(async { Ok(None) })
    }

    const GOOD: Unit = Unit { name: "a.b", queue: "default", ..Unit::new(Kind::Task, nothing, "here.rs:1", "tests") };

    fn problems(unit: Unit) -> String {
        Units::check([&*Box::leak(Box::new(unit))]).err().unwrap_or_default()
    }

    #[test]
    fn what_ships_is_valid() {
        let units = Units::discover().expect("valid");
        assert!(units.get("maintenance.purge").is_some() && units.get("identity.login_notification_email").is_some());
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        assert_eq!(problems(GOOD), "");
        for (unit, word) in [
            (Unit { name: "A.b", ..GOOD }, "segments"),
            (Unit { name: "a..b", ..GOOD }, "segments"),
            (Unit { queue: "fast", ..GOOD }, "there is no queue"),
            (Unit { context: "none", ..GOOD }, "context"),
            (Unit { overlap: "maybe", ..GOOD }, "overlap"),
            (Unit { concurrency: 0, ..GOOD }, "concurrency"),
            (Unit { timeout_seconds: 40_000, ..GOOD }, "11 hours"),
            (Unit { schedule: "rate(1 hour)", ..GOOD }, "no tenant"),
            (Unit { schedule: "rate(0 hours)", context: "system", ..GOOD }, "rate"),
            (Unit { schedule: "cron(0 9 * * 1)", context: "system", ..GOOD }, "write cron(0 9 ? * 2 *)"),
            (Unit { schedule: "rate(1 hour)", schedule_timezone: "New_York", context: "system", ..GOOD }, "America/New_York"),
            (Unit { schedule_timezone: "UTC", ..GOOD }, "no schedule"),
            (
                Unit { schedule: "rate(1 hour)", context: "system", reads: |_| Err(TaskError::validation("a field is missing")), ..GOOD },
                "and a field is missing; give each field #[serde(default)]",
            ),
            (Unit { kind: Kind::Subscriber { event: "X", version: 1 }, ..GOOD }, "event type"),
            (Unit { kind: Kind::Subscriber { event: "x", version: 0 }, ..GOOD }, "version"),
        ] {
            let text = problems(unit);
            assert!(text.contains(word) && text.starts_with("here.rs:1: "), "{word}: {text}");
        }
    }

    #[test]
    fn a_name_is_taken_once_and_subscribers_share_a_context() {
        static TWICE: Unit = GOOD;
        assert!(Units::check([&TWICE, &TWICE]).expect_err("twice").contains("taken"));
        static ONE: Unit = Unit { kind: Kind::Subscriber { event: "e", version: 1 }, ..GOOD };
        static OTHER: Unit = Unit { name: "c", context: "system", ..ONE };
        assert!(Units::check([&ONE, &OTHER]).expect_err("two contexts").contains("same event"));
    }
}
