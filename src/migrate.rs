//! Migrations under an advisory lock, then everything that is applied anew: functions, views, guards, grants, the catalogue; then indexes.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Row, Transaction, error::SqlState};

use crate::{catalogue::Catalogue, checks::Finding, database::Database, error::Error, pools::answered, sql};

mod watch;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// Key of the advisory lock that one migration at a time holds.
const LOCK: i64 = 0x006d_6f6e_616c_6973; // "monalis"
/// How long a statement waits for a table that somebody holds, so that nobody queues behind it for long.
const LOCK_TIMEOUT: &str = "2s";
/// Between two tries nobody queues at all.
const PAUSE: Duration = Duration::from_secs(4);
const TRIES: u32 = 5;
/// How long another migration is waited for: it may be making an index of a large table.
const LONGEST_TURN: Duration = Duration::from_secs(3_600);

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// Migrations that were applied now.
    pub applied: Vec<String>,
    /// Changes of the catalogue: what, and of which unit.
    pub catalogue: Vec<(String, String)>,
    /// The schema's version now; above this program's where a newer one migrated before.
    pub version: i32,
}

/// The newest schema this program knows.
pub(crate) fn newest() -> i32 {
    embedded::migrations::runner().get_migrations().iter().map(|migration| migration.version()).max().unwrap_or_default()
}

/// What tells one set of migrations from another.
#[cfg(feature = "testing")]
pub(crate) fn fingerprint() -> Vec<(String, u64)> {
    embedded::migrations::runner().get_migrations().iter().map(|migration| (migration.to_string(), migration.checksum())).collect()
}

/// Brings the schema up to date and loads the catalogue as `service`. Any number of processes may do it at once; each waits for the
/// one before. A table that somebody holds for long makes it give up, after half a minute of short tries, with an error that says who.
pub async fn migrate(database: &Database, catalogue: &Catalogue, service: &str) -> Result<Migrated, Error> {
    let mut client = database.connect("migrate").await?;
    client
        .batch_execute(&format!(
            "set statement_timeout = 0; set lock_timeout = '{LOCK_TIMEOUT}'; set idle_in_transaction_session_timeout = '10min'"
        ))
        .await
        .map_err(Error::postgres("migrate"))?;
    lock(&client).await?;
    let asked = async {
        let row = client.query_one("select pg_backend_pid(), current_setting('server_encoding')", &[]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    };
    let (pid, encoding): (i32, String) = answered("migrate", asked).await?;
    if encoding != "UTF8" {
        return Err(Error::Config(format!(
            "the database has the encoding {encoding}, which does not hold every text: make one with create database … encoding 'UTF8' \
             template template0"
        )));
    }
    let watch = watch::Watch::of(database, pid);

    let mut attempt = 1;
    loop {
        match apply(&mut client, catalogue, service).await {
            Err(error) if attempt < TRIES && is_busy(&error) => {
                tracing::warn!(attempt, "a table is in use for long; the migration lets others pass and tries again");
                tokio::time::sleep(PAUSE).await;
                attempt += 1;
            }
            Err(error) if is_busy(&error) => {
                let who = watch.last().unwrap_or_else(|| "somebody who could not be seen".to_owned());
                return Err(Error::Busy(format!("{error}; it waited for {who}: end that transaction, and migrate again")));
            }
            Err(error) => return Err(error),
            Ok(migrated) => {
                if newer(migrated.version).is_none() {
                    make_indexes(&client).await?;
                }
                return Ok(migrated);
            }
        }
    }
}

/// Makes the indexes that are missing or were left half made, without holding anybody up. It waits for transactions that began before,
/// however long they last.
async fn make_indexes(client: &Client) -> Result<(), Error> {
    client.batch_execute("set lock_timeout = 0").await.map_err(Error::postgres("migrate"))?;
    for index in sql::INDEXES {
        let state = client.query_opt(sql::ops::INDEX_STATE.text, &[/* name */ &index.name]).await;
        let valid: Option<bool> =
            state.and_then(|row| row.map(|row| row.try_get("valid")).transpose()).map_err(Error::postgres(sql::ops::INDEX_STATE.name))?;
        if valid != Some(true) {
            tracing::info!(index = index.name, "making an index; transactions that began before are waited for");
            drop_index(client, index.name).await?;
            client.batch_execute(index.statement.text).await.map_err(Error::postgres(index.statement.name))?;
        }
        if let Some(comment) = index.statement.comment() {
            client.batch_execute(&comment).await.map_err(Error::postgres(index.statement.name))?;
        }
        if let Some(replaced) = index.replaces {
            drop_index(client, replaced).await?;
        }
    }
    Ok(())
}

async fn drop_index(client: &Client, name: &'static str) -> Result<(), Error> {
    client.batch_execute(&format!("drop index concurrently if exists work.{name}")).await.map_err(Error::postgres("drop index"))
}

/// Waits for its turn. The lock is held by the session: a killed process gives it back. It is asked for again and again, since whoever
/// waited for it in PostgreSQL would be waited for by an index that is made meanwhile.
async fn lock(client: &Client) -> Result<(), Error> {
    let began = Instant::now();
    while began.elapsed() < LONGEST_TURN {
        let taken = client.query_one("select pg_try_advisory_lock($1)", &[&LOCK]).await.and_then(|row| row.try_get(0));
        if taken.map_err(Error::postgres("migrate lock"))? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Error::Busy(format!("another migration has been at work for {} minutes; see what it waits for", LONGEST_TURN.as_secs() / 60)))
}

async fn apply(client: &mut Client, catalogue: &Catalogue, service: &str) -> Result<Migrated, Error> {
    become_owner(client).await?;
    client
        .batch_execute(&format!("{}; create schema if not exists work", sql::ROLES.text.trim_end().trim_end_matches(';')))
        .await
        .map_err(|error| roles_error(error, sql::ROLES.name))?;
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name("work.schema_history");
    // A newer version may have migrated before; that is no reason to stop here.
    let report = runner.set_abort_missing(false).run_async(client).await.map_err(refinery_error)?;
    let applied = report.applied_migrations().iter().map(|migration| migration.to_string()).collect();

    let transaction = client.transaction().await.map_err(Error::postgres("migrate"))?;
    let version = transaction.query_one(sql::ops::SCHEMA_VERSION.text, &[]).await;
    let version = version.and_then(|row| row.try_get("version")).map_err(Error::postgres(sql::ops::SCHEMA_VERSION.name))?;
    match newer(version) {
        // Its functions and views are newer too: other programs call them.
        Some(newer) => tracing::warn!("{newer}; its functions and views are left alone, and the catalogue is loaded"),
        None => {
            for statement in sql::REAPPLIED {
                reapply(&transaction, statement).await?;
            }
        }
    }
    let catalogue = load(&transaction, catalogue, service).await?;
    transaction.commit().await.map_err(Error::postgres("migrate commit"))?;
    Ok(Migrated { applied, catalogue, version })
}

/// Works with the rights of the role that owns the schema: the first that migrated. Logins may change.
async fn become_owner(client: &Client) -> Result<(), Error> {
    let asked = async {
        let row = client.query_opt(sql::ops::SCHEMA_OWNER.text, &[]).await?;
        row.map(|row| Ok((row.try_get("owner")?, row.try_get("role")?, row.try_get("may")?))).transpose()
    };
    let found: Option<(String, String, bool)> = answered(sql::ops::SCHEMA_OWNER.name, asked).await?;
    match found {
        Some((owner, role, true)) if owner != role => answered("set role", client.batch_execute(&format!("set role {owner}"))).await,
        Some((owner, role, false)) => Err(Error::Config(format!(
            "the schema `work` belongs to {owner}, and {role} may not change it: migrate as {owner}, or grant {owner} to {role}"
        ))),
        None | Some((_, _, true)) => Ok(()),
    }
}

/// Makes it anew and gives it its comment.
async fn reapply(transaction: &Transaction<'_>, statement: &sql::Statement) -> Result<(), Error> {
    let execute = async |text: &str| transaction.batch_execute(text).await.map_err(Error::postgres(statement.name));
    match statement.name.split_once('/') {
        Some(("functions", _)) => {
            execute(statement.text).await?;
            transaction.batch_execute(sql::ONE_SIGNATURE.text).await.map_err(Error::postgres(sql::ONE_SIGNATURE.name))?;
        }
        // One that is as it should be is left alone: whoever reads it in a long transaction would be in the way.
        Some(("views", name)) => {
            let state = transaction.query_one(sql::ops::VIEW_STATE.text, &[/* name */ &name, /* file */ &statement.text]).await;
            let state = state.and_then(|row| Ok((row.try_get("same")?, row.try_get("hash")?)));
            let (same, hash): (bool, String) = state.map_err(Error::postgres(sql::ops::VIEW_STATE.name))?;
            if !same {
                execute(statement.text).await?;
                execute(&format!("comment on rule \"_RETURN\" on work.{name} is '{hash}'")).await?;
            }
        }
        _ => return execute(statement.text).await,
    }
    match statement.comment() {
        Some(comment) => execute(&comment).await,
        None => Ok(()),
    }
}

/// Loads the catalogue of a service; what changed, and of which unit.
async fn load(transaction: &Transaction<'_>, catalogue: &Catalogue, service: &str) -> Result<Vec<(String, String)>, Error> {
    let text = catalogue.to_json()?;
    let changes = transaction.query(sql::catalogue::LOAD.text, &[/* catalogue */ &text, /* service */ &service]).await;
    let changes = changes.and_then(|rows| rows.iter().map(|row| Ok((row.try_get("change")?, row.try_get("unit")?))).collect());
    changes.map_err(Error::postgres(sql::catalogue::LOAD.name))
}

/// What a load of a catalogue would change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// What, and of which unit.
    pub(crate) changes: Vec<(String, String)>,
    /// Work of units that would be retired.
    pub(crate) orphans: Vec<Orphans>,
}

/// Unfinished runs of one unit in one state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Orphans {
    pub(crate) unit: String,
    pub(crate) status: String,
    pub(crate) count: i64,
    /// How long the oldest has been there.
    pub(crate) oldest: Duration,
}

/// Loads a catalogue in a transaction that is rolled back, and looks at the work of the units that it retires.
pub(crate) async fn difference(database: &Database, catalogue: &Catalogue, service: &str) -> Result<Difference, Error> {
    let mut client = database.connect("diff").await?;
    let transaction = client.transaction().await.map_err(Error::postgres("diff"))?;
    let changes = match load(&transaction, catalogue, service).await {
        // Nothing was ever migrated there.
        Err(error) if error.sqlstate() == Some(&SqlState::INVALID_SCHEMA_NAME) => {
            catalogue.units().map(|unit| ("added".to_owned(), unit.to_owned())).collect()
        }
        changes => changes?,
    };
    transaction.rollback().await.map_err(Error::postgres("diff"))?;
    let retired: Vec<&String> = changes.iter().filter(|(change, _)| change == "retired").map(|(_, unit)| unit).collect();
    if retired.is_empty() {
        return Ok(Difference { changes, orphans: Vec::new() });
    }
    let rows = client.query(sql::catalogue::UNFINISHED.text, &[/* units */ &retired]).await;
    let orphans = rows.and_then(|rows| rows.iter().map(orphans).collect()).map_err(Error::postgres(sql::catalogue::UNFINISHED.name))?;
    Ok(Difference { changes, orphans })
}

fn orphans(row: &Row) -> Result<Orphans, tokio_postgres::Error> {
    Ok(Orphans {
        unit: row.try_get("unit")?,
        status: row.try_get("status")?,
        count: row.try_get("count")?,
        oldest: Duration::try_from_secs_f64(row.try_get("oldest_s")?).unwrap_or_default(),
    })
}

fn roles_error(error: tokio_postgres::Error, name: &'static str) -> Error {
    if error.code().is_some_and(|code| code.code() == "42501") {
        return Error::Other(
            "this role may not create roles or the schema: let a DBA run sql/ops/roles.sql once and grant create on the database"
                .to_owned(),
        );
    }
    Error::Postgres { statement: name, source: error }
}

fn refinery_error(error: refinery::Error) -> Error {
    // Whether it is tried again depends on the SQLSTATE, which is found among the causes.
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(source) = cause {
        if let Some(code) = source.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code)
            && (code == &SqlState::LOCK_NOT_AVAILABLE || code == &SqlState::T_R_DEADLOCK_DETECTED)
        {
            return Error::Busy("a migration waited too long for a table that somebody holds".to_owned());
        }
        cause = source.source();
    }
    Error::Other(format!("the migration failed: {}", crate::error::chain(&error)))
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Busy(_)) || error.is_locked() || error.sqlstate() == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Checks the schema at boot: an older one is refused, a newer one is a warning.
pub(crate) async fn check(client: &Client) -> Result<Option<Finding>, Error> {
    let version = answered(sql::ops::SCHEMA_VERSION.name, client.query_one(sql::ops::SCHEMA_VERSION.text, &[])).await;
    let version: Option<i32> = match version {
        Ok(row) => row.try_get("version").map_err(Error::postgres(sql::ops::SCHEMA_VERSION.name))?,
        Err(error) if error.sqlstate().is_some_and(|code| matches!(code.code(), "42P01" | "3F000")) => None,
        Err(error) if error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return Err(Error::Other(
                "the role in DATABASE_URL may not work here: grant monalisa_worker to it, after workers migrate has made the schema"
                    .to_owned(),
            ));
        }
        Err(error) => return Err(error),
    };
    let newer = match (version, newest()) {
        (None, _) => Err(Error::Other("the database has no schema `work` yet: run make migrate (workers migrate)".to_owned())),
        (Some(found), newest) if found < newest => Err(Error::Other(format!(
            "the schema is at version {found}, this program needs {newest}: run make migrate (workers migrate) before starting it"
        ))),
        (Some(found), _) => Ok(newer(found)),
    }?;
    let asked = async {
        let row = client.query_one(sql::ops::MAY_WORK.text, &[]).await?;
        Ok((row.try_get("may")?, row.try_get("role")?))
    };
    let (may, role): (bool, String) = answered(sql::ops::MAY_WORK.name, asked).await?;
    if may {
        return Ok(newer);
    }
    Err(Error::Other(format!("the role {role} may not work here and would see no run: grant monalisa_worker to {role}")))
}

fn newer(found: i32) -> Option<Finding> {
    let newest = newest();
    (found > newest).then(|| {
        Finding::warning(
            format!("the schema is newer than this program: version {found}, and {newest} here"),
            "it goes on all the same; deploy the program that migrated last",
        )
    })
}
