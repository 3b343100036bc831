//! `workers dlq`: look at dead letters, take them back, throw them away.
//!
//! A letter is deleted only after the transaction that made it superfluous has committed (I11); killed anywhere, the command leaves letters
//! hidden for a while, and running it again goes on. Any number may run at once, beside workers and redrives by the console. Each has a row
//! in the audit from before it touches a letter on.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use tokio_postgres::{Client, types::ToSql};
use uuid::Uuid;

use crate::{
    envelope::Envelope,
    error::Error,
    pools::{answered, answered_within},
    queue::Queue,
    sql::{self, Statement},
    sqs::{BATCH_ENTRIES, Queues, RawLetter, Target},
};

/// How long letters stay hidden from others while the command works on them.
const HIDE: Duration = Duration::from_secs(15 * 60);
/// Letters that are held at most at a time: those that do not match are given back at the end.
const MOST_HELD: usize = 20_000;
/// How long a function of an operator waits for a lock.
const LOCKED: Duration = Duration::from_secs(10);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(2);

/// Which dead letters.
#[derive(Debug, Clone, Args)]
pub(crate) struct Filter {
    /// Only the dead-letter queue of this queue
    #[arg(long)]
    queue: Option<Queue>,
    /// Only of this unit
    #[arg(long)]
    unit: Option<String>,
    /// Only with this failure code, such as WORKER_LOST
    #[arg(long, value_name = "CODE")]
    error: Option<String>,
    /// Only those that failed longer ago than this, such as 90s, 15m, 2h or 3d
    #[arg(long, value_name = "AGE", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only those that failed more recently than this
    #[arg(long, value_name = "AGE", value_parser = duration)]
    newer_than: Option<Duration>,
    /// At most so many
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

/// What to do with them.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Show,
    Redrive { reason: String, per_second: u32 },
    Purge { reason: String },
}

/// A dead letter as the command sees it.
struct Letter {
    raw: RawLetter,
    unit: String,
    code: String,
    text: String,
    failed_at: Option<DateTime<Utc>>,
    /// The run, and the generation that failed; none where the body is not ours.
    run: Option<(Uuid, i32)>,
    /// SQS moved it by itself: no failure of ours.
    moved: bool,
}

impl Letter {
    fn read(raw: RawLetter) -> Letter {
        let envelope = Envelope::read(&raw.body).ok();
        let body: Value = serde_json::from_str(&raw.body).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let letter = &body["deadLetter"];
        let failed_at = letter["at"].as_str().and_then(|at| DateTime::parse_from_rfc3339(at).ok()).map(|at| at.to_utc());
        // SQS moved a message without a mark by itself: its own generation is meant.
        let run = envelope.map(|envelope| (envelope.run_id, if envelope.mark() > 0 { envelope.mark() } else { envelope.generation }));
        let moved = run.is_some() && letter.is_null();
        let code = raw.code.clone().unwrap_or_else(|| if moved { "MOVED_BY_SQS".to_owned() } else { text(&letter["code"]) });
        Letter {
            unit: text(&body["unit"]),
            code,
            text: raw.reason.clone().unwrap_or_else(|| text(&letter["text"])),
            failed_at: failed_at.or(raw.sent_at),
            run,
            moved,
            raw,
        }
    }

    fn line(&self, queue: Queue, now: DateTime<Utc>) -> String {
        let age = self.failed_at.and_then(|at| (now - at).to_std().ok()).map_or_else(|| "?".to_owned(), short);
        let run = self.run.map_or_else(|| "-".to_owned(), |(run_id, _)| run_id.to_string());
        let [unit, code, text] = [(&self.unit, 64), (&self.code, 64), (&self.text, 60)].map(|(text, limit)| shown(text, limit));
        format!("{age:>5}  {queue:<11}  {run:<36}  {unit:<32}  {code:<20}  {text}")
    }
}

/// The first line of a text that anybody may have written into a message: cut, and without what drives a terminal.
fn shown(text: &str, limit: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(limit).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl Filter {
    fn queues(&self) -> Vec<Queue> {
        self.queue.map_or_else(|| Queue::ALL.to_vec(), |queue| vec![queue])
    }

    /// Letters of failures since the command began are for the next one: what it reopened may have failed again.
    fn takes(&self, letter: &Letter, began: DateTime<Utc>) -> bool {
        let age = (began - letter.failed_at.unwrap_or(began)).to_std();
        let Ok(age) = age else { return false };
        self.unit.as_ref().is_none_or(|unit| letter.unit == *unit)
            && self.error.as_ref().is_none_or(|code| letter.code == *code)
            && self.older_than.is_none_or(|limit| age > limit)
            && self.newer_than.is_none_or(|limit| age < limit)
    }
}

/// What became of the letters.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Letters that matched.
    pub(crate) matched: u64,
    reopened: u64,
    renewed: u64,
    over: u64,
    deleted: u64,
    left: u64,
}

impl Outcome {
    pub(crate) fn summary(&self, act: &Act, dry_run: bool) -> String {
        match act {
            Act::Show => format!("{} dead letters", self.matched),
            _ if dry_run => format!("{} dead letters match; nothing was done", self.matched),
            Act::Redrive { .. } => format!(
                "{} runs reopened, {} unfinished ones sent again, {} letters of finished or reopened runs thrown away, {} left",
                self.reopened, self.renewed, self.over, self.left
            ),
            Act::Purge { .. } if self.renewed + self.left > 0 => format!(
                "{} dead letters deleted; their runs stay failed; {} unfinished ones sent again, {} left",
                self.deleted, self.renewed, self.left
            ),
            Act::Purge { .. } => format!("{} dead letters deleted; their runs stay failed", self.deleted),
        }
    }
}

/// Goes through the dead-letter queues and does it; `say` gets a line at a time.
///
/// What it is about to do stands in the audit before the first letter is touched, and what became of it after the last one: a command that
/// was killed leaves the first without the second.
pub(crate) async fn handle(
    sqs: &Queues,
    database: &Client,
    filter: &Filter,
    act: &Act,
    dry_run: bool,
    say: impl Fn(&str),
) -> Result<Outcome, Error> {
    let began = async { database.query_one(sql::ops::CLOCK.text, &[]).await?.try_get("now") };
    let began = answered(sql::ops::CLOCK.name, began).await?;
    let audit = if dry_run { None } else { Audit::begin(database, filter, act).await? };
    let mut walk = Walk { sqs, database, filter, act, dry_run, began, say, outcome: Outcome::default() };
    let mut done = Ok(());
    for queue in filter.queues() {
        if done.is_ok() && walk.goes_on() {
            done = walk.queue(queue).await;
        }
    }
    let noted = match audit {
        Some(audit) => audit.end(&walk.outcome, done.as_ref().err()).await,
        None => Ok(()),
    };
    done.and(noted).map(|()| walk.outcome)
}

/// The trace of a command in `work.actions`: a row at its begin, and one at its end.
struct Audit<'a> {
    database: &'a Client,
    action: &'static str,
    target: &'static str,
    reason: &'a str,
    /// Tells which end belongs to which begin.
    command: Uuid,
}

impl Audit<'_> {
    /// Notes which letters are meant; nothing for a command that does nothing to them.
    async fn begin<'a>(database: &'a Client, filter: &Filter, act: &'a Act) -> Result<Option<Audit<'a>>, Error> {
        let (action, reason, rate) = match act {
            Act::Show => return Ok(None),
            Act::Redrive { reason, per_second } => ("dlq redrive", reason, Some(*per_second)),
            Act::Purge { reason } => ("dlq purge", reason, None),
        };
        let audit = Audit { database, action, target: filter.queue.map_or("all", Queue::as_str), reason, command: Uuid::new_v4() };
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs());
        let meant = json!({
            "command": audit.command, "unit": filter.unit, "error": filter.error, "older_than_s": seconds(filter.older_than),
            "newer_than_s": seconds(filter.newer_than), "limit": filter.limit, "rate": rate,
        });
        audit.note(action, meant).await?;
        Ok(Some(audit))
    }

    /// Notes what became of them.
    async fn end(&self, outcome: &Outcome, error: Option<&Error>) -> Result<(), Error> {
        let became = json!({
            "command": self.command, "matched": outcome.matched, "deleted": outcome.deleted, "reopened": outcome.reopened,
            "renewed": outcome.renewed, "over": outcome.over, "left": outcome.left, "failed": error.map(ToString::to_string),
        });
        self.note(&format!("{} ended", self.action), became).await
    }

    /// What is null says nothing.
    async fn note(&self, action: &str, mut detail: Value) -> Result<(), Error> {
        if let Some(detail) = detail.as_object_mut() {
            detail.retain(|_, value| !value.is_null());
        }
        let parameters: &[&(dyn ToSql + Sync)] = &[&action, &self.target, &self.reason, &detail.to_string()];
        answered(sql::ops::AUDIT.name, self.database.execute(sql::ops::AUDIT.text, parameters)).await.map(drop)
    }
}

/// A command on its way through the dead-letter queues.
struct Walk<'a, S> {
    sqs: &'a Queues,
    database: &'a Client,
    filter: &'a Filter,
    act: &'a Act,
    dry_run: bool,
    /// When it began, by the database clock.
    began: DateTime<Utc>,
    /// Gets a line at a time.
    say: S,
    outcome: Outcome,
}

impl<S: Fn(&str)> Walk<'_, S> {
    /// Whether more letters may match.
    fn goes_on(&self) -> bool {
        self.outcome.matched < self.filter.limit
    }

    /// Goes through one queue, and gives back what stays in it.
    async fn queue(&mut self, queue: Queue) -> Result<(), Error> {
        let mut held = Vec::new();
        let done = self.letters(queue, &mut held).await;
        release(self.sqs, queue, &held).await;
        done
    }

    async fn letters(&mut self, queue: Queue, held: &mut Vec<String>) -> Result<(), Error> {
        let mut seen = HashSet::new();
        let mut shown = (Instant::now(), self.outcome.matched);
        while self.goes_on() {
            let letters = self.sqs.receive_letters(queue, HIDE).await?;
            let mut done = Vec::new();
            let mut news = false;
            for letter in letters.into_iter().map(Letter::read) {
                let receipt = letter.raw.receipt.clone();
                let new = seen.insert(letter.raw.message_id.clone());
                news |= new;
                if !new || !self.goes_on() || !self.filter.takes(&letter, self.began) {
                    held.push(receipt);
                    continue;
                }
                self.outcome.matched += 1;
                if self.dry_run || matches!(self.act, Act::Show) {
                    (self.say)(&letter.line(queue, self.began));
                    held.push(receipt);
                } else if self.decide(&letter).await? {
                    done.push(receipt);
                } else {
                    held.push(receipt);
                }
            }
            delete(self.sqs, queue, &done).await?;
            if shown.0.elapsed() > PROGRESS && self.outcome.matched > shown.1 && !matches!(self.act, Act::Show) {
                shown = (Instant::now(), self.outcome.matched);
                (self.say)(&format!("{queue}: {} so far", self.outcome.matched));
            }
            // Nothing, or only letters that came round again.
            if !news {
                return Ok(());
            }
            if held.len() >= MOST_HELD {
                (self.say)(&format!("{queue}: {MOST_HELD} letters stay where they are; behind them more may match"));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Acts on one letter; whether it is to be deleted.
    async fn decide(&mut self, letter: &Letter) -> Result<bool, Error> {
        let began = Instant::now();
        let Some((run_id, generation)) = letter.run else {
            let purged = matches!(self.act, Act::Purge { .. });
            *(if purged { &mut self.outcome.deleted } else { &mut self.outcome.left }) += 1;
            return Ok(purged);
        };
        let (decided, pause) = match self.act {
            Act::Redrive { reason, per_second } => {
                (self.ask(sql::ops::REDRIVE, &[&run_id, &generation, reason]).await, Duration::from_secs(1) / *per_second)
            }
            // It may be all that brings an unfinished run.
            Act::Purge { .. } if letter.moved => (self.ask(sql::ops::RENEW, &[&run_id]).await, Duration::ZERO),
            _ => (Ok("purged".to_owned()), Duration::ZERO),
        };
        let word = match decided {
            // One run that cannot be touched now holds up no other.
            Err(error) if !error.session_is_gone() => {
                (self.say)(&format!("{run_id}: {error}"));
                "left".to_owned()
            }
            decided => decided?,
        };
        let outcome = &mut self.outcome;
        let (count, delete) = match (word.as_str(), self.act) {
            ("reopened", _) => (&mut outcome.reopened, true),
            ("renewed", _) => (&mut outcome.renewed, true),
            ("over" | "no_run" | "purged", Act::Purge { .. }) => (&mut outcome.deleted, true),
            ("over", _) => (&mut outcome.over, true),
            _ => (&mut outcome.left, false),
        };
        *count += 1;
        tokio::time::sleep(pause.saturating_sub(began.elapsed())).await;
        Ok(delete)
    }

    async fn ask(&self, statement: Statement, parameters: &[&(dyn ToSql + Sync)]) -> Result<String, Error> {
        // It may wait for a lock, and has a limit of its own for that.
        let answer = async { self.database.query_one(statement.text, parameters).await?.try_get("outcome") };
        answered_within(LOCKED + LOCKED, statement.name, answer).await
    }
}

/// What cannot be deleted comes back and is found to be over.
async fn delete(sqs: &Queues, queue: Queue, receipts: &[String]) -> Result<(), Error> {
    for chunk in receipts.chunks(BATCH_ENTRIES) {
        sqs.delete(Target::DeadLetters(queue), chunk).await?;
    }
    Ok(())
}

/// What stays can be received again at once; where that fails, after a while.
async fn release(sqs: &Queues, queue: Queue, receipts: &[String]) {
    for chunk in receipts.chunks(BATCH_ENTRIES) {
        let hides: Vec<(String, Duration)> = chunk.iter().map(|receipt| (receipt.clone(), Duration::ZERO)).collect();
        if let Err(error) = sqs.hide(Target::DeadLetters(queue), &hides).await {
            tracing::warn!(%queue, %error, "dead letters stay hidden for up to 15 minutes");
        }
    }
}

/// Reads 90s, 15m, 2h, 3d.
fn duration(text: &str) -> Result<Duration, String> {
    let shape = "a number with s, m, h or d, such as 90s, 15m, 2h or 3d";
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(shape)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(shape.to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| shape)?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| shape.to_owned())
}

/// 42s, 17m, 3h, 12d.
fn short(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7_200 => format!("{}m", seconds / 60),
        seconds @ ..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_and_written_in_their_largest_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("3d"), Ok(Duration::from_secs(259_200)));
        for text in ["", "s", "3", "3w", "-1d", "1.5h", "99999999999999999d", "é"] {
            assert!(duration(text).is_err(), "{text}");
        }
        let written: Vec<String> = [42, 119, 120, 7_200, 172_800].map(|seconds| short(Duration::from_secs(seconds))).into();
        assert_eq!(written, ["42s", "119s", "2m", "2h", "2d"]);
    }
}
