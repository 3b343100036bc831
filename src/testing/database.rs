//! Databases for tests: copied from a template, dropped at the end. What a killed test program leaves goes a day later.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio_postgres::Client;
use url::Url;
use uuid::Uuid;

use super::worker::aside;
use crate::{catalogue::Catalogue, database::Database, error::Error, migrate, sql, unit::Units};

/// How their names begin.
const TEST: &str = "monalisa_test_";
const TEMPLATE: &str = "monalisa_template_";
/// Databases that an earlier program left are dropped some at a time.
const SWEPT: i64 = 20;
/// How long the end of a test waits for its database to be dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(20);

/// Tenants for those who have no table of their own.
const TENANTS: &str = "do $$ begin
    if (select count(*) from pg_attribute where attrelid = 'public.tenants'::regclass and attnum > 0 and not attisdropped) = 1 then
      insert into public.tenants select generate_series(1, 9) on conflict do nothing;
    end if;
  end $$";

/// A database that is dropped with this.
pub(super) struct Own {
    server: String,
    name: String,
}

impl Drop for Own {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A runtime of its own: this may be a thread of either runtime, which cannot wait for its own work.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let dropped = async {
                let drop = format!("drop database if exists {name} with (force)");
                tokio::time::timeout(DROP_TIMEOUT, async { execute(&connect(&server).await?, &drop).await }).await
            };
            runtime.map(|runtime| drop(runtime.block_on(dropped)))
        });
        drop(dropping.join());
    }
}

/// Makes a database for these units; its address, and what drops it.
pub(super) async fn make(server: &str, units: &Units, setup: &str) -> Result<(String, Own), Error> {
    let (server, catalogue, setup) = (server.to_owned(), Catalogue::of(units), setup.to_owned());
    aside(async move {
        let client = connect(&server).await?;
        let template = template_name(&catalogue, &setup)?;
        let own = Own { server: server.clone(), name: new_name(TEST) };
        let copy = format!("create database {} template {template}", own.name);
        if !exists(&client, &template).await? {
            make_template(&client, &server, &template, &catalogue, &setup).await?;
        }
        execute(&client, &copy).await?;
        note(&client, &own.name).await?;
        Ok((address(&server, &own.name)?, own))
    })
    .await
}

/// Named by everything that is in it.
fn template_name(catalogue: &Catalogue, setup: &str) -> Result<String, Error> {
    let mut hasher = DefaultHasher::new();
    migrate::fingerprint().hash(&mut hasher);
    for statement in sql::REAPPLIED.iter().copied().chain(sql::INDEXES.iter().map(|index| index.statement)) {
        statement.text.hash(&mut hasher);
    }
    (catalogue.to_json()?, setup, TENANTS).hash(&mut hasher);
    Ok(format!("{TEMPLATE}{:016x}", hasher.finish()))
}

/// Makes the template under another name and renames it at the end: what bears its name is complete. Where another program was faster,
/// that one's is taken.
async fn make_template(client: &Client, server: &str, name: &str, catalogue: &Catalogue, setup: &str) -> Result<(), Error> {
    sweep(client).await?;
    let own = Own { server: server.to_owned(), name: new_name(TEST) };
    let create = client.batch_execute(&format!("create database {}", own.name)).await;
    create.map_err(|error| match error.code().map(|code| code.code()) {
        Some("42501") => Error::Other(
            "the role of DATABASE_URL may not create databases: grant it createdb, or test on TestDatabase::existing".to_owned(),
        ),
        _ => Error::Postgres { statement: "create database", source: error },
    })?;
    note(client, &own.name).await?;
    let url = address(server, &own.name)?;
    connect(&url).await?.batch_execute(setup).await.map_err(Error::postgres("setup"))?;
    let database = Database::parse(&url).map_err(Error::Config)?;
    migrate::migrate(&database, catalogue, "workers").await?;
    execute(&connect(&url).await?, TENANTS).await?;
    // Sessions that have just ended may still be seen for a moment.
    let rename = format!("alter database {} rename to {name}", own.name);
    for _ in 0..100 {
        match client.batch_execute(&rename).await {
            Ok(()) => return Ok(()),
            Err(_) if exists(client, name).await? => return Ok(()),
            Err(error) if error.code().is_some_and(|code| code.code() == "55006") => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(Error::Postgres { statement: "rename database", source: error }),
        }
    }
    Err(Error::Busy(format!("the database {} is in use", own.name)))
}

/// Drops test databases that are a day old and templates that are a month old; what is in use stays.
async fn sweep(client: &Client) -> Result<(), Error> {
    let old = "select d.datname::text
                 from pg_database d,
                      lateral (select shobj_description(d.oid, 'pg_database') as noted offset 0) n
                where d.datname like any (array['monalisa\\_test\\_%', 'monalisa\\_template\\_%'])
                  and n.noted like 'monalisa, made %'
                  and substr(n.noted, 16)::timestamptz
                      < now() - case when d.datname like 'monalisa\\_test\\_%' then interval '1 day' else interval '30 days' end
                limit $1";
    for row in client.query(old, &[&SWEPT]).await.map_err(Error::postgres("old databases"))? {
        let name: String = row.try_get(0).map_err(Error::postgres("old databases"))?;
        drop(execute(client, &format!("drop database if exists {name}")).await);
    }
    Ok(())
}

/// Notes when it was made.
async fn note(client: &Client, name: &str) -> Result<(), Error> {
    execute(client, &format!("do $$ begin execute format('comment on database {name} is %L', 'monalisa, made ' || now()); end $$")).await
}

fn new_name(start: &str) -> String {
    format!("{start}{}", Uuid::new_v4().simple())
}

async fn exists(client: &Client, name: &str) -> Result<bool, Error> {
    let row = client.query_opt("select from pg_database where datname = $1", &[&name]).await;
    row.map(|row| row.is_some()).map_err(Error::postgres("look for a database"))
}

async fn connect(url: &str) -> Result<Client, Error> {
    Database::parse(url).map_err(Error::Config)?.connect_for_others("test").await
}

async fn execute(client: &Client, sql: &str) -> Result<(), Error> {
    client.batch_execute(sql).await.map_err(Error::postgres("test database"))
}

/// The address of another database on the same server.
fn address(server: &str, name: &str) -> Result<String, Error> {
    let mut url = Url::parse(server).map_err(|_| Error::Config("DATABASE_URL is no URL".to_owned()))?;
    url.set_path(name);
    Ok(url.into())
}
