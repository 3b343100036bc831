//! How far back the relay looks for due rows: no further than it must, so that a claim costs the same while a long transaction elsewhere
//! keeps the index entries of sent rows alive.

use std::time::{Duration, Instant};

use crate::outbox::{From, Row};

/// Full looks come at least so far apart, and take at most a twentieth of the time.
const FULL_LOOK: Duration = Duration::from_secs(5);
/// After a full look that took too long only so far back is looked, until the next one.
const RECENT: Duration = Duration::from_secs(600);
/// And the next one comes so much later, doubled each time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the next claim of a queue and table begins.
#[derive(Debug)]
pub(super) struct Look {
    next: From,
    full_at: Instant,
    partial: bool,
    /// Full looks that took too long, one after the other.
    too_long: u32,
}

impl Look {
    pub(super) fn new() -> Look {
        Look { next: From::TheStart, full_at: Instant::now(), partial: false, too_long: 0 }
    }

    pub(super) fn from(&self) -> From {
        if Instant::now() >= self.full_at { From::TheStart } else { self.next.clone() }
    }

    /// What is claimed now is looked for again until its pass has committed.
    pub(super) fn claimed(&mut self, from: &From) {
        self.next = from.clone();
    }

    /// PostgreSQL did not come to an end of it: too many entries of sent rows are kept alive. What became due lately goes out meanwhile.
    pub(super) fn took_too_long(&mut self) {
        if self.from() == From::TheStart {
            self.full_at = Instant::now() + PATIENCE * (1 << self.too_long.min(5));
            self.too_long += 1;
            self.partial = true;
            self.next = From::Drained(Instant::now().checked_sub(RECENT).unwrap_or_else(Instant::now));
        }
    }

    /// A look began then and found no more than up to `last`, or all there was. `cost` is what it took of PostgreSQL's time, not of SQS's.
    pub(super) fn looked(&mut self, from: &From, began: Instant, cost: Duration, last: Option<&Row>) {
        self.partial = *from != From::TheStart;
        if !self.partial {
            self.full_at = Instant::now() + FULL_LOOK.max(cost * 20);
            self.too_long = 0;
        }
        self.next = last.map_or(From::Drained(began), |row| From::Row(row.available_at.clone(), row.id));
    }

    /// Somebody else holds what was due; it may die with it.
    pub(super) fn missed(&mut self) {
        self.partial = true;
    }

    /// When a look at everything is needed, where rows may be due that the last look did not see or could not have.
    pub(super) fn full_in(&self) -> Option<Duration> {
        self.partial.then(|| self.full_at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_looks_back_only_as_far_as_it_must() {
        let now = Instant::now();
        let mut look = Look { full_at: now + Duration::from_secs(60), ..Look::new() };
        let row = Row {
            id: 7,
            run_id: uuid::Uuid::nil(),
            tenant_id: None,
            envelope: String::new(),
            attempts: 0,
            available_at: "2026-01-01".to_owned(),
        };
        let cursor = From::Row("2026-01-01".to_owned(), 7);
        assert_eq!(look.from(), From::TheStart);
        look.looked(&From::TheStart, now, Duration::ZERO, Some(&row));
        assert_eq!(look.from(), cursor);
        look.claimed(&cursor);
        assert_eq!(look.from(), cursor, "a pass that fails begins where it began");
        look.looked(&cursor, now, Duration::ZERO, None);
        assert_eq!((look.partial, look.from()), (true, From::Drained(now)));
        look.full_at = Instant::now();
        assert_eq!(look.from(), From::TheStart, "now and then everything is looked at");
        look.took_too_long();
        assert!(matches!(look.from(), From::Drained(at) if at < now), "{look:?}: what became due lately goes out all the same");
    }
}
