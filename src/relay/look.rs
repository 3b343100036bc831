//! How far back the relay looks for due rows: no further than it must, so that a claim costs the same while a long transaction elsewhere
//! keeps the index entries of sent rows alive.

use std::time::{Duration, Instant};

use crate::outbox::From;

/// Full looks come at least so far apart, and take at most a twentieth of the time.
const FULL_LOOK: Duration = Duration::from_secs(5);

/// Where the next claim of a queue and table begins.
#[derive(Debug)]
pub(super) struct Look {
    next: From,
    full_at: Instant,
    partial: bool,
}

impl Look {
    pub(super) fn new() -> Look {
        Look { next: From::TheStart, full_at: Instant::now(), partial: false }
    }

    pub(super) fn from(&self) -> From {
        if Instant::now() >= self.full_at { From::TheStart } else { self.next.clone() }
    }

    /// What is claimed now is looked for again until its pass has committed.
    pub(super) fn claimed(&mut self) {
        self.next = From::TheStart;
    }

    /// A look began then and found no more than up to `last`, or all there was. `cost` is what it took of PostgreSQL's time, not of SQS's.
    pub(super) fn looked(&mut self, from: &From, began: Instant, cost: Duration, last: Option<String>) {
        self.partial = *from != From::TheStart;
        if !self.partial {
            self.full_at = Instant::now() + FULL_LOOK.max(cost * 20);
        }
        self.next = last.map_or(From::Drained(began), From::Row);
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
        let mut look = Look { next: From::TheStart, full_at: now + Duration::from_secs(60), partial: false };
        assert_eq!(look.from(), From::TheStart);
        look.looked(&From::TheStart, now, Duration::ZERO, Some("2026-01-01".to_owned()));
        assert_eq!(look.from(), From::Row("2026-01-01".to_owned()));
        look.looked(&From::Row(String::new()), now, Duration::ZERO, None);
        assert_eq!((look.partial, look.from()), (true, From::Drained(now)));
        look.full_at = Instant::now();
        assert_eq!(look.from(), From::TheStart, "now and then everything is looked at");
    }
}
