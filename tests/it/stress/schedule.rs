//! What goes wrong, in which order and with which pauses: a pure function of the seed.

use std::time::Duration;

use serde_json::json;

/// Processes that take part; the first two have a relay.
pub const PROCESSES: usize = 3;
/// The pauses of as many steps as lie between a freeze and its end.
const FREEZE: Duration = Duration::from_millis(1_000);

/// A task to dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub unit: &'static str,
    pub payload: String,
    pub tenant: i64,
}

/// One step. A number names the run or the body that is meant, by its place among those there are.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Tasks in one transaction; false: it is rolled back.
    Dispatch(Vec<Task>, bool),
    Kill(usize),
    /// kill -9 while the process waits for the answer to this statement. One that is to give runs back is told to stop before.
    KillAt(usize, &'static str),
    /// SIGSTOP in a handler.
    Freeze(usize),
    /// Nothing reaches PostgreSQL any more from a process whose handler is about to end, and what it sends comes late.
    Part(usize),
    /// What is frozen or parted goes on when its leases have lapsed.
    Thaw,
    /// SIGTERM; another takes its place.
    Drain(usize),
    /// The next answer to this statement is lost, and its session.
    LoseAnswer(usize, &'static str),
    /// All sessions of a process are cut.
    Cut(usize),
    /// All sessions are cut while a commit is under way on the server.
    CutInCommit,
    /// A rule of the SQS engine.
    Sqs(&'static str),
    /// Bodies that were sent before are sent again.
    Copies(usize),
    /// SQS loses what this queue has to give now.
    Lose(&'static str),
    /// An operator moves dead letters back to their queue.
    Redrive(&'static str),
    Cancel(usize),
    Retry(usize),
    /// A purge while an operator's retry, not yet committed, makes an old row pending again.
    Purge(usize),
    /// A repair of what was lost.
    Repair,
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Where a drain gives back what it cannot finish.
pub const GIVE_BACK: &str = "runs/give_back:";
const KILLED_AT: [&str; 6] = ["runs/succeed:", "commit", "runs/start:", "runs/fail:", "outbox/mark_sent:", GIVE_BACK];
const LOST_ANSWERS: [&str; 5] = ["commit", "COMMIT", "runs/start:", "runs/succeed:", "runs/succeed_alone:"];
const RULES: [&str; 9] = [
    r#"{"op":"SendMessageBatch","mode":"lost_answer","times":2}"#,
    r#"{"op":"SendMessageBatch","mode":"omit_entries","entries":[0],"queued_anyway":true,"times":2}"#,
    r#"{"op":"SendMessageBatch","mode":"error","status":500,"times":2}"#,
    r#"{"op":"DeleteMessageBatch","mode":"error","status":500,"times":3}"#,
    r#"{"op":"DeleteMessageBatch","mode":"fail_entries","entries":[0],"times":3}"#,
    r#"{"op":"ReceiveMessage","mode":"lost_answer","times":2}"#,
    r#"{"op":"ReceiveMessage","mode":"throttle","times":2}"#,
    r#"{"op":"ChangeMessageVisibilityBatch","mode":"error","status":500,"times":2}"#,
    r#"{"op":"ChangeMessageVisibilityBatch","mode":"lost_answer","times":2}"#,
];
/// Queues that the units of the stress travel on.
pub const QUEUES: [&str; 2] = ["critical", "maintenance"];

/// The faults of one round, in no order.
fn faults(chance: &mut Chance) -> Vec<Step> {
    let mut faults = Vec::new();
    faults.extend(KILLED_AT.map(|at| Step::KillAt(chance.below(PROCESSES), at)));
    faults.extend(LOST_ANSWERS.map(|to| Step::LoseAnswer(chance.below(PROCESSES), to)));
    faults.extend(RULES.map(Step::Sqs));
    for queue in QUEUES {
        faults.extend([Step::Lose(queue), Step::Redrive("critical"), Step::Repair, Step::CutInCommit]);
    }
    for _ in 0..2 {
        faults.extend([Step::Kill(chance.below(PROCESSES)), Step::Drain(chance.below(PROCESSES)), Step::Part(chance.below(PROCESSES))]);
    }
    faults.extend([Step::Cut(chance.below(PROCESSES)), Step::Freeze(chance.below(PROCESSES))]);
    for _ in 0..3 {
        faults.extend([Step::Copies(chance.below(1_000)), Step::Retry(chance.below(1_000)), Step::Purge(chance.below(1_000))]);
    }
    faults.extend((0..5).map(|_| Step::Cancel(chance.below(1_000))));
    faults
}

/// Tasks of all kinds: short and long ones, some that fail for a while or for good, that have no effect, or a slow commit. A fault
/// that needs another moment than most of them have gets tasks that have it.
fn tasks(chance: &mut Chance, count: usize, fault: Option<&Step>) -> Vec<Task> {
    let mut task = |_| {
        let ms = if chance.one_in(12) { 2_000 } else { 20 + chance.below(500) };
        let tenant = 1 + chance.below(5) as i64;
        if matches!(fault, Some(Step::Freeze(_) | Step::Part(_))) {
            return Task { unit: "s.work", payload: json!({ "ms": 0 }).to_string(), tenant };
        }
        if chance.one_in(6) {
            return Task { unit: "s.parent", payload: json!({ "ms": ms }).to_string(), tenant };
        }
        let fails = if chance.one_in(6) { 1 + chance.below(5) } else { 0 };
        let slow = matches!(fault, Some(Step::CutInCommit)) || chance.one_in(20);
        let payload = json!({ "ms": ms, "fails": fails, "permanent": chance.one_in(8), "quiet": chance.one_in(8), "slow": slow });
        Task { unit: "s.work", payload: payload.to_string(), tenant }
    };
    (0..count).map(&mut task).collect()
}

/// Whether it happens to work that is under way.
fn needs_work(step: &Step) -> bool {
    use Step::{CutInCommit, Drain, Freeze, Kill, KillAt, Lose, LoseAnswer, Part};
    matches!(step, Kill(_) | KillAt(..) | Freeze(_) | Part(_) | Drain(_) | LoseAnswer(..) | CutInCommit | Lose(_))
}

/// The process that it happens to.
fn process(step: &mut Step) -> Option<&mut usize> {
    use Step::{Cut, Drain, Freeze, Kill, KillAt, LoseAnswer, Part};
    match step {
        Kill(at) | KillAt(at, _) | Drain(at) | LoseAnswer(at, _) | Cut(at) | Freeze(at) | Part(at) => Some(at),
        _ => None,
    }
}

/// The steps, each with the pause before it.
pub fn schedule(seed: u64, runs: usize) -> Vec<(Duration, Step)> {
    let mut chance = Chance(seed);
    let mut faults: Vec<Step> = (0..runs.div_ceil(150)).flat_map(|_| faults(&mut chance)).collect();
    for place in (1..faults.len()).rev() {
        faults.swap(place, chance.below(place + 1));
    }
    let portion = runs.div_ceil(faults.iter().filter(|step| needs_work(step)).count());
    let mut steps = vec![(Duration::ZERO, Step::Dispatch(tasks(&mut chance, portion, None), true))];
    // One process is frozen at a time; other faults of this kind wait, and other faults of this process meet another.
    let (mut now, mut frozen, mut waiting): (Duration, Option<(usize, Duration)>, Vec<Step>) = (Duration::ZERO, None, Vec::new());
    let mut faults = faults.into_iter();
    while let Some(mut fault) = waiting.pop_if(|_| frozen.is_none()).or_else(|| faults.next()) {
        let pause = Duration::from_millis(10 + chance.below(120) as u64);
        now += pause;
        if frozen.is_some_and(|(_, until)| now >= until) {
            steps.push((Duration::ZERO, Step::Thaw));
            frozen = None;
        }
        if frozen.is_some() && matches!(fault, Step::Freeze(_) | Step::Part(_)) {
            waiting.push(fault);
            continue;
        }
        if let (Some((still, _)), Some(at)) = (frozen, process(&mut fault))
            && *at == still
        {
            *at = (still + 1) % PROCESSES;
        }
        if needs_work(&fault) {
            steps.push((Duration::ZERO, Step::Dispatch(tasks(&mut chance, portion, Some(&fault)), true)));
            if chance.one_in(8) {
                steps.push((Duration::ZERO, Step::Dispatch(tasks(&mut chance, 2, None), false)));
            }
        }
        if let Step::Freeze(at) | Step::Part(at) = fault {
            frozen = Some((at, now + FREEZE));
        }
        steps.push((pause, fault));
    }
    steps.extend(frozen.map(|_| (Duration::ZERO, Step::Thaw)));
    for fault in waiting {
        steps.push((Duration::ZERO, Step::Dispatch(tasks(&mut chance, portion, Some(&fault)), true)));
        steps.extend([(Duration::ZERO, fault), (Duration::ZERO, Step::Thaw)]);
    }
    steps
}

#[test]
fn the_faults_of_a_stress_are_a_function_of_its_seed() {
    assert_eq!(schedule(1, 150), schedule(1, 150));
    assert_ne!(schedule(1, 150), schedule(2, 150));
    let steps = schedule(3, 600);
    let dispatched: usize = steps.iter().map(|(_, step)| if let Step::Dispatch(tasks, true) = step { tasks.len() } else { 0 }).sum();
    assert!((600..720).contains(&dispatched), "{dispatched}");
    let freezes = steps.iter().filter(|(_, step)| matches!(step, Step::Freeze(_) | Step::Part(_))).count();
    let thaws = steps.iter().filter(|(_, step)| matches!(step, Step::Thaw)).count();
    assert_eq!((freezes, thaws), (12, 12));
}
