//! `sessions.record`: keeps a row of every session that was started. It subscribes to an event.
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
    use monalisa::testing::TestDatabase;

    use super::*;

    #[tokio::test]
    async fn a_session_is_recorded_under_the_run() {
        let db = TestDatabase::new(include_str!("../schema.sql")).await.unwrap();
        let session = SessionStarted { email: "ana@example.org".to_owned() };
        let tried = db.subscriber("sessions.record", &session).tenant(2).run().await.unwrap();
        assert_eq!(tried.error(), None);
        let row = tried.query_one("select email from sessions_recorded where run_id = $1", &[&tried.run_id]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "ana@example.org");
    }

    #[tokio::test]
    async fn it_is_recorded_as_it_is_published_whatever_becomes_of_the_mail() {
        let db = TestDatabase::new(include_str!("../schema.sql")).await.unwrap();
        let publish = r#"select work.publish('identity.session_started',
                             '{"email": "ana@example.org", "ip": "192.0.2.1", "occurred_at": "2026-01-02T03:04:05Z"}', tenant_id => 1)"#;
        db.execute(publish, &[]).await.unwrap();

        // All that is due, from the publish to the commit: this subscriber and the mail, for which there is no server here.
        let ran = db.run_due().await.unwrap();
        let ended: Vec<_> = ran.iter().map(|run| (run.unit.as_str(), run.status.as_str())).collect();
        assert!(ended.len() == 2 && ended.contains(&("sessions.record", "succeeded")), "{ran:?}");
        assert_eq!(db.query("select from sessions_recorded", &[]).await.unwrap().len(), 1);
    }
}
