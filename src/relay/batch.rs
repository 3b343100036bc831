//! Calls of one pass: at most ten messages and 256 KiB each.

use std::ops::Range;

use crate::{
    envelope,
    outbox::Row,
    sqs::{BATCH_BYTES, BATCH_ENTRIES, Outgoing},
};

/// Messages of one call, and where in the pass they stand.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) place: Range<usize>,
    bytes: usize,
    pub(super) messages: Vec<Outgoing>,
}

/// What SQS gets of a row; with its tenant where queues are to be fair.
pub(super) fn message(row: &Row, fair: bool) -> Outgoing {
    Outgoing {
        attributes: envelope::dead_letter(&row.envelope).unwrap_or_default(),
        body: row.envelope.clone(),
        group: row.tenant_id.filter(|_| fair).map(|id| id.to_string()),
    }
}

/// Batches of at most ten messages and 256 KiB; one that is larger than that goes alone, for SQS to judge.
pub(super) fn batches(messages: impl Iterator<Item = Outgoing>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (place, message) in messages.enumerate() {
        let bytes = message.bytes();
        match batches.last_mut() {
            Some(batch) if batch.messages.len() < BATCH_ENTRIES && batch.bytes + bytes <= BATCH_BYTES => {
                batch.place.end = place + 1;
                batch.bytes += bytes;
                batch.messages.push(message);
            }
            _ => batches.push(Batch { place: place..place + 1, bytes, messages: vec![message] }),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(bytes: usize) -> Outgoing {
        Outgoing { attributes: Vec::new(), body: "x".repeat(bytes), group: None }
    }

    #[test]
    fn batches_keep_to_ten_messages_and_to_their_bytes() {
        let places = |messages: Vec<Outgoing>| batches(messages.into_iter()).into_iter().map(|batch| batch.place).collect::<Vec<_>>();
        assert_eq!(places((0..25).map(|_| outgoing(100)).collect()), [0..10, 10..20, 20..25]);
        assert_eq!(places(vec![outgoing(200_000), outgoing(62_144), outgoing(1)]), [0..2, 2..3], "exactly 256 KiB fits");
        assert_eq!(places(vec![outgoing(1), outgoing(300_000), outgoing(1)]), [0..1, 1..2, 2..3], "an oversized one goes alone");
    }
}
