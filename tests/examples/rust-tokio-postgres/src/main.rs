//! Schedules work from Rust with `tokio-postgres`, in a transaction of your own.
//!
//! ```text
//! DATABASE_URL=… MONALISA_VALKEY_URL=… MONALISA_TASKS_CATALOG=tasks.json example-tokio-postgres 7
//! ```

mod reports;

use monalisa::{Catalogue, Client};
use reports::{GenerateReport, Refused, request_report, schedule_report};
use tokio_postgres::NoTls;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report_id: i64 = std::env::args().nth(1).ok_or("give the id of a report")?.parse()?;
    let (mut db, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let work = Client::new(std::env::var("MONALISA_VALKEY_URL").ok().as_deref())?;
    check_catalogue(&db).await?;

    println!("scheduled {}", request_report(&mut db, &work, 1, report_id, "pdf").await?);
    // The same key and payload: the first run, and no second one.
    println!("again {}", request_report(&mut db, &work, 1, report_id, "pdf").await?);
    match request_report(&mut db, &work, 1, report_id, "csv").await {
        Err(Refused::AlreadyAskedFor) => println!("refused ML008"),
        other => println!("{other:?}"),
    }
    // A rollback leaves nothing: no report, no run, no message.
    let transaction = db.transaction().await?;
    println!("rolled_back {}", schedule_report(&transaction, 1, report_id + 1, "pdf").await?);
    transaction.rollback().await?;
    Ok(())
}

/// An API does not start without its catalogue, nor where that lacks what it dispatches.
async fn check_catalogue(db: &tokio_postgres::Client) -> Result<(), monalisa::Error> {
    let catalogue = Catalogue::from_environment()?;
    catalogue.require::<GenerateReport>()?;
    if !catalogue.compare(db).await? {
        eprintln!("warning: the database holds another catalogue than tasks.json");
    }
    Ok(())
}
