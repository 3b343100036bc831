//! `sessions.record`: keeps a row of every session that was started.
//!
//! It is the second subscriber of `identity.session_started`; the first, which ships, mails the user. Each publish of the event gives
//! every subscriber a run of its own, so that neither waits for the other or fails with it:
//!
//! ```sql
//! begin;
//! insert into sessions …;                                            -- your own work
//! select work.publish('identity.session_started',
//!                     '{"email": "ana@example.org", "occurred_at": "2026-01-02T03:04:05Z"}', tenant_id => 7);
//! commit;                                                            -- both or neither
//! ```

use monalisa::{Event, TaskError, TaskRun, subscriber};
use serde::{Deserialize, Serialize};

/// What this subscriber reads of the event; fields that it does not name are left alone.
#[derive(Serialize, Deserialize)]
struct SessionStarted {
    email: String,
}

impl Event for SessionStarted {
    const TYPE: &'static str = "identity.session_started";
}

subscriber! {
    event: SessionStarted,
    handler: record,
    name: "sessions.record",
    queue: "default",
}

/// What is written through the run's transaction is committed together with the run's `succeeded`, or not at all: the row is there
/// exactly once, however often the message is delivered and whenever a worker dies. An error rolls it back and the run is tried again.
async fn record(session: SessionStarted, run: &TaskRun) -> Result<(), TaskError> {
    let effect = run.transaction().await?;
    effect.execute("insert into public.sessions_recorded (run_id, email) values ($1, $2)", &[&run.run_id(), &session.email]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use monalisa::{Kind, Units};

    use super::SessionStarted;

    #[test]
    fn it_subscribes_to_the_event_beside_the_mail_that_ships() {
        let units = Units::discover().expect("every unit is valid");
        for name in ["sessions.record", "identity.login_notification_email"] {
            let unit = units.get(name).expect("linked in");
            assert_eq!(unit.kind, Kind::Subscriber { event: "identity.session_started", version: 1 });
        }
    }

    #[test]
    fn it_reads_the_event_as_it_is_published() {
        let text = r#"{"email": "ana@example.org", "ip": "192.0.2.1", "occurred_at": "2026-01-02T03:04:05Z"}"#;
        let session: SessionStarted = serde_json::from_str(text).expect("a payload");
        assert_eq!(session.email, "ana@example.org");
    }
}
