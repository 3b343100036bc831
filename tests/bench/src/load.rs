//! Dispatches at an even pace, as many callers do.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::{Result, number, start::dispatch, variable};

/// Sessions that share the work: one that waits holds up none of the others.
const CALLERS: u32 = 8;

/// RATE dispatches a second for DURATION seconds, or until the query UNTIL answers true. How long each took from the time at which it was to
/// begin, so that one that waits for a slow one before it is slow too.
pub(crate) async fn measure() -> Result<Vec<f64>> {
    let pause = Duration::from_secs(1) / u32::try_from(number("RATE", 50))?;
    let end = Instant::now() + Duration::from_secs(number("DURATION", 30) as u64);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (client, stopped) = (connect().await?, stopped.clone());
        callers.spawn(async move {
            let mut times = Vec::new();
            let mut at = Instant::now() + pause * caller;
            while at < end && !*stopped.borrow() {
                tokio::time::sleep_until(at.into()).await;
                dispatch(&client).await?;
                times.push(at.elapsed().as_secs_f64() * 1_000.0);
                at += pause * CALLERS;
            }
            Result::Ok(times)
        });
    }
    if let Ok(until) = variable("UNTIL") {
        let client = connect().await?;
        while Instant::now() < end && !client.query_one(&until, &[]).await?.try_get::<_, bool>(0)? {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        stop.send(true)?;
    }
    let mut times = Vec::new();
    while let Some(done) = callers.join_next().await {
        times.extend(done??);
    }
    Ok(times)
}

async fn connect() -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&variable("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
