//! Whom a migration waits for: looked at from beside it, since who waits cannot ask.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Row};

use crate::{database::Database, error::Error, sql};

/// Pause between two looks.
const PACE: Duration = Duration::from_millis(500);
/// Who is still waited for is said again after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// A session that watches another one, until it is dropped.
pub(super) struct Watch {
    seen: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Watches the session with this pid. Without a second connection nothing is seen, which stops no migration.
    pub(super) fn of(database: &Database, pid: i32) -> Watch {
        let seen = Arc::new(Mutex::new(None));
        let (database, into) = (database.clone(), seen.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = look(&database, pid, &into).await {
                tracing::warn!(%error, "who a migration waits for, if anybody, cannot be seen");
            }
        });
        Watch { seen, task }
    }

    /// Who was waited for last.
    pub(super) fn last(&self) -> Option<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look(database: &Database, pid: i32, seen: &Mutex<Option<String>>) -> Result<(), Error> {
    let client = database.connect("migrate watch").await?;
    let mut told: Option<(Vec<i32>, Instant)> = None;
    loop {
        tokio::time::sleep(PACE).await;
        let blockers = blockers(&client, pid).await.map_err(Error::postgres(sql::ops::BLOCKERS.name))?;
        let pids: Vec<i32> = blockers.iter().map(|(pid, _)| *pid).collect();
        if pids.is_empty() {
            continue;
        }
        let text = blockers.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; ");
        if told.as_ref().is_none_or(|(before, at)| *before != pids || at.elapsed() > AGAIN) {
            tracing::warn!("the migration waits for {text}");
            told = Some((pids, Instant::now()));
        }
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Pids, and what there is to say of each.
async fn blockers(client: &Client, pid: i32) -> Result<Vec<(i32, String)>, tokio_postgres::Error> {
    client.query(sql::ops::BLOCKERS.text, &[/* pid */ &pid]).await?.iter().map(described).collect()
}

fn described(row: &Row) -> Result<(i32, String), tokio_postgres::Error> {
    let pid = row.try_get("pid")?;
    let (role, application): (Option<&str>, Option<&str>) = (row.try_get("role")?, row.try_get("application")?);
    let (state, open): (Option<&str>, Option<f64>) = (row.try_get("state")?, row.try_get("open_s")?);
    let mut text = format!("the session with pid {pid} (role {}, application {:?}", role.unwrap_or("?"), application.unwrap_or(""));
    if let Some(state) = state {
        text += &format!(", {state}");
    }
    if let Some(open) = open {
        text += &format!(", its transaction began {open:.0} s ago");
    }
    Ok((pid, text + ")"))
}
