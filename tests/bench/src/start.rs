//! How long it takes from the end of a commit to the start of the handler, both by the database's clock; and how long a dispatch takes.

use std::time::{Duration, Instant};

use monalisa::{Secret, Waker};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::{Result, measurements, rest, variable};

/// The time is taken by the statement after the commit, in the same message to the server.
const DISPATCH: &str = "
    begin;
    select work.dispatch('t.ok', '{}', 1);
    commit;
    select extract(epoch from clock_timestamp())";

pub(crate) async fn measure() -> Result<Vec<f64>> {
    let (client, connection) = tokio_postgres::connect(&variable("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let waker = std::env::var("MONALISA_VALKEY_URL").ok().map(|url| Waker::new(&Secret::new(url))).transpose()?;
    let mut times = Vec::new();
    // The first one opens connections and fills caches; it is not counted.
    for number in 0..=measurements() {
        rest().await;
        let (run_id, committed) = dispatch(&client).await?;
        if let Some(waker) = &waker {
            waker.wake().await;
        }
        let started = started(&client, &run_id).await?;
        if number > 0 {
            times.push((started - committed) * 1_000.0);
        }
    }
    Ok(times)
}

/// How long a dispatch takes its caller, the commit included.
pub(crate) async fn measure_dispatch() -> Result<Vec<f64>> {
    let (client, connection) = tokio_postgres::connect(&variable("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let mut times = Vec::new();
    for number in 0..=measurements() {
        tokio::time::sleep(Duration::from_millis(rand::random_range(20..100))).await;
        let began = Instant::now();
        dispatch(&client).await?;
        if number > 0 {
            times.push(began.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    Ok(times)
}

/// The run's id, and when the commit was over.
pub(crate) async fn dispatch(client: &Client) -> Result<(String, f64)> {
    let answers = client.simple_query(DISPATCH).await?;
    let mut values = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let (Some(run_id), Some(committed)) = (values.next(), values.next()) else { return Err("no answer to the dispatch".into()) };
    Ok((run_id.to_owned(), committed.parse()?))
}

/// When the run was started; asks until it has succeeded.
async fn started(client: &Client, run_id: &str) -> Result<f64> {
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(25)).await;
        let query =
            "select extract(epoch from started_at)::float8 from work.task_runs where run_id = $1::text::uuid and status = 'succeeded'";
        if let Some(row) = client.query_opt(query, &[&run_id]).await? {
            return Ok(row.try_get(0)?);
        }
    }
    Err(format!("run {run_id} did not succeed in 30 s").into())
}
