//! An SQS for development and tests.
//!
//! [`Server`] answers the AWS JSON 1.0 protocol on a local port. Queues, visibility, delays, long polls and the move
//! to the dead-letter queue are the `rustack` engine's; this crate adds the rules of AWS that the engine lacks (sizes,
//! characters, ranges, batch entries, receipt handles), so that what AWS refuses is refused here too.
//!
//! Everything is in memory: a restart forgets all queues. To make an outage that forgets nothing, stop the process with
//! `SIGSTOP` and let it go on with `SIGCONT`.
//!
//! # Hooks
//!
//! | request | does |
//! |---|---|
//! | `GET /_health` | 200 |
//! | `POST /_fault` | adds a fault rule, or an array of them |
//! | `GET /_fault` | the rules, with how often each acted |
//! | `DELETE /_fault` | takes all rules away |
//! | `GET /_calls` | calls and entries counted by action, and the latest 10,000 calls |
//! | `DELETE /_calls` | forgets them |
//!
//! [`Server::fault`], [`Server::calls`] and their like do the same in the process. A rule is, with all but `mode`
//! optional:
//!
//! ```json
//! {"op": "SendMessageBatch", "queue_contains": "critical", "body_contains": "text", "skip": 0, "times": 1,
//!  "mode": "delay | error | throttle | drop_request | lost_answer | never_answer | fail_entries | omit_entries | double_entries | omit_attributes",
//!  "delay_ms": 0, "status": 500, "code": "InternalError", "sender_fault": false,
//!  "entries": [0, 2], "entry_contains": "text", "queued_anyway": false}
//! ```
//!
//! The first rule that matches acts. `body_contains` is also looked for in the message behind a receipt handle. Every
//! mode waits `delay_ms` first. `error` and `throttle` refuse without effect; `drop_request` and `lost_answer` reset the
//! connection, before and after the call took effect; `never_answer` keeps the client waiting; `fail_entries` puts the
//! chosen entries of a batch into `Failed`, `omit_entries` into no list. These three have no effect on the queue unless
//! `queued_anyway`. `double_entries` serves the chosen entries and puts them into both lists. `omit_attributes` takes the
//! system attributes, such as the receive count, out of what is received.
//!
//! # Where it differs from AWS
//!
//! FIFO queues are refused. Retention does not delete, a deleted queue's name is free at once, and the number of messages
//! in flight has no limit. In null mode ([`Mode::Null`]) messages are accepted and forgotten, for benchmarks. In forwarding
//! mode ([`Mode::Forward`]) another engine answers, behind the same hooks.

mod api;
mod calls;
mod error;
mod fault;
mod forward;
mod handles;
mod moves;
mod null;
mod queues;
mod receive;
mod rules;
mod send;
mod server;
mod sim;
mod store;
mod sync;
mod wake;

pub use server::Server;
pub use sim::{ExpiredHandle, Mode, Options};
