//! What a test gets: a database, an SQS engine and a Redis database of its own, and real processes.

pub mod certificates;
pub mod checks;
pub mod pg_bouncer;
pub mod pg_proxy;
pub mod pg_server;
pub mod process;
pub mod redis_server;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{
    OnceCell,
    mpsc::{UnboundedReceiver, unbounded_channel},
};
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, error::DbError, types::ToSql};
use uuid::Uuid;

pub use pg_proxy::Proxy;
pub use process::{Process, binary};

/// How long anything a test waits for may take.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// How soon the work must go on after a fault has ended.
pub const SOON: Duration = Duration::from_secs(10);

/// What takes some hundredths of a second where no other test is busy, and far longer where something waits that should not.
pub const AT_ONCE: Duration = Duration::from_secs(5);
/// Visibility in seconds, short enough for a test.
pub const SHORT: (&str, &str) = ("MONALISA_VISIBILITY_SECONDS", "critical=3,default=3,bulk=3,maintenance=3");

/// A relay beside the workers.
pub const RELAY: (&str, &str) = ("MONALISA_RELAY", "true");

/// A relay with next to nothing beside it.
pub const RELAY_ALONE: &[(&str, &str)] = &[("MONALISA_RELAY", "true"), ("QUEUES", "maintenance")];

static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static REDIS: AtomicU32 = AtomicU32::new(0);

fn required(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test`, or eval \"$(scripts/stack env)\" first"))
}

/// The URL of a database on the server of this URL, for a role.
fn database_url(server: &str, database: &str, role: Option<&str>) -> String {
    let mut url = url::Url::parse(server).expect("DATABASE_URL is a URL");
    url.set_path(database);
    if let Some(role) = role {
        url.set_username(role).expect("a role");
    }
    url.into()
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL answers");
    tokio::spawn(connection);
    client
}

/// A session whose notices, warnings and logs can be read; they are there before the statement that caused them ends.
pub async fn listening(url: &str) -> (Client, UnboundedReceiver<DbError>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL answers");
    let (said, heard) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(AsyncMessage::Notice(notice)) = message {
                let _ = said.send(notice);
            }
        }
    });
    (client, heard)
}

/// One migrated database that every test's is copied from; its name tells what is in it.
async fn template() -> &'static str {
    TEMPLATE
        .get_or_init(|| async {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
            for folder in [folder.join("migrations"), folder.join("tests/test-workers/src")] {
                let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
                files.sort();
                files.iter().for_each(|file| std::fs::read_to_string(file).unwrap().hash(&mut hasher));
            }
            let indexes = monalisa::sql::INDEXES.iter().map(|index| index.statement);
            for statement in monalisa::sql::REAPPLIED.iter().copied().chain(indexes) {
                statement.text.hash(&mut hasher);
            }
            // What migrates, beside what it applies.
            (include_str!("mod.rs"), include_str!("../../../src/migrate.rs"), include_str!("../../../src/sql.rs")).hash(&mut hasher);
            let name = format!("template_{:016x}", hasher.finish());
            let server = required("DATABASE_URL");
            let admin = connect(&server).await;
            // Test programs may run side by side: one makes it, the others wait.
            admin.execute("select pg_advisory_lock(4711)", &[]).await.unwrap();
            let there = admin.query_opt("select from pg_database where datname = $1 and datistemplate", &[&name]).await.unwrap();
            if there.is_none() {
                admin.batch_execute(&format!("drop database if exists {name}")).await.unwrap();
                admin.batch_execute(&format!("create database {name}")).await.unwrap();
                prepare(&database_url(&server, &name, None)).await;
                // A database somebody is connected to cannot be copied.
                wait_for("the template to be free", async || {
                    admin.execute(&format!("alter database {name} is_template true allow_connections false"), &[]).await.ok()
                })
                .await;
            }
            admin.execute("select pg_advisory_unlock(4711)", &[]).await.unwrap();
            name
        })
        .await
}

/// Migrates a database, and makes what the test units need.
async fn prepare(url: &str) {
    let migrated =
        std::process::Command::new(binary("test-workers")).arg("migrate").env("DATABASE_URL", url).output().expect("test-workers runs");
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    connect(url).await.batch_execute(PREPARE).await.unwrap();
}

/// What the test units need in a migrated database, and a role of each kind.
pub const PREPARE: &str = "
    create table public.effects (run_id uuid not null, note text not null, at timestamptz not null default clock_timestamp());
    create sequence public.calls;
    insert into public.tenants select generate_series(1, 20);
    do $$ begin
      begin create role test_worker login; exception when duplicate_object or unique_violation then null; end;
      begin create role test_api login; exception when duplicate_object or unique_violation then null; end;
      begin create role test_operator login; exception when duplicate_object or unique_violation then null; end;
      begin create role test_observer login; exception when duplicate_object or unique_violation then null; end;
      begin create role test_owner login; exception when duplicate_object or unique_violation then null; end;
      begin create role test_nobody login; exception when duplicate_object or unique_violation then null; end;
      grant monalisa_worker to test_worker;
      grant monalisa_producer to test_api;
      grant monalisa_operator to test_operator;
      grant monalisa_observer to test_observer;
      grant monalisa_owner to test_owner;
    end $$;
    grant select, insert on public.effects to test_worker;
    grant usage on sequence public.calls to test_worker;
";

/// What PostgreSQL said when it refused a statement.
pub fn refusal<T>(result: Result<T, tokio_postgres::Error>) -> DbError {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.as_db_error().unwrap_or_else(|| panic!("{error:?}")).clone(),
    }
}

/// Each byte as a URL may hold it anywhere.
pub fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A limit for a machine with nothing else to do, stretched where more wants to run than it has cores for: with the suite beside it
/// everything takes longer, and by itself a test is as sharp as it is written.
pub fn stretched(limit: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").expect("Linux");
    let load: f64 = load.split(' ').next().and_then(|minute| minute.parse().ok()).expect("the load of the last minute");
    let cores = std::thread::available_parallelism().expect("a number").get() as f64;
    limit.mul_f64((load / cores / 2.0).clamp(1.0, 6.0))
}

/// It took no longer than this; see `stretched`.
#[track_caller]
pub fn in_time(began: Instant, limit: Duration) {
    let (took, limit) = (began.elapsed(), stretched(limit));
    assert!(took < limit, "it took {took:?}, of at most {limit:?}");
}

/// Waits for something to be there, asking often, with a limit.
pub async fn wait_for<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(began.elapsed() < stretched(PATIENCE), "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Where the SQS engines and the like run: a test that waits for a process must not stop them.
pub fn engine() -> &'static tokio::runtime::Runtime {
    static ENGINE: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    ENGINE.get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"))
}

/// Where `MONALISA_TEST_SQS` names another engine, that one keeps the messages: a second opinion of what SQS does.
fn sqs_options() -> sqs_sim::Options {
    let other = std::env::var("MONALISA_TEST_SQS").ok().map(|address| address.parse().expect("MONALISA_TEST_SQS is an address"));
    sqs_sim::Options { mode: other.map_or_else(Default::default, sqs_sim::Mode::Forward), ..Default::default() }
}

/// A test's own world.
pub struct World {
    /// As superuser, to look and to meddle.
    pub db: Client,
    /// The SQS engine, with fault rules and a log of its calls.
    pub sqs: sqs_sim::Server,
    server: String,
    name: String,
    redis: String,
}

impl World {
    /// A database copied from the template, an SQS engine with the queues, a Redis database.
    pub async fn new() -> World {
        let world = World::without_queues().await;
        let made = world.command("workers", &["queues", "create"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        world
    }

    /// The same without the queues.
    pub async fn without_queues() -> World {
        World::on(required("DATABASE_URL"), &format!("template {}", template().await)).await
    }

    /// A database with nothing in it, not even the schema, and no queues.
    pub async fn empty() -> World {
        World::on(required("DATABASE_URL"), "template template0").await
    }

    /// The same as `new` on a PostgreSQL of the test's own.
    pub async fn with_server(server: &pg_server::PgServer) -> World {
        let world = World::on(server.url(), "template template0").await;
        prepare(&world.url(None)).await;
        let made = world.command("workers", &["queues", "create"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        world
    }

    async fn on(server: String, origin: &str) -> World {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let admin = connect(&server).await;
        wait_for("the copy of the template", async || {
            // Two copies of one template at a time are fine; a busy one is tried again.
            admin.execute(&format!("create database {name} {origin}"), &[]).await.ok()
        })
        .await;
        let redis = url::Url::parse(&required("MONALISA_VALKEY_URL")).expect("MONALISA_VALKEY_URL is a URL");
        let number = (std::process::id() * 37 + REDIS.fetch_add(1, Ordering::Relaxed)) % 1_023 + 1;
        let redis = redis.join(&format!("/{number}")).expect("a URL").to_string();
        World {
            db: connect(&database_url(&server, &name, None)).await,
            sqs: engine()
                .spawn(sqs_sim::Server::start_with("127.0.0.1:0", sqs_options()))
                .await
                .expect("it starts")
                .expect("a port is free"),
            server,
            name,
            redis,
        }
    }

    /// The URL of this test's database for a role: one of each group (`test_api` of the producers, `test_nobody` of none), or the superuser.
    pub fn url(&self, role: Option<&str>) -> String {
        database_url(&self.server, &self.name, role)
    }

    /// A proxy in front of PostgreSQL. Start a process with `through` of it as its `DATABASE_URL` to disturb that process alone.
    pub async fn pg_proxy(&self) -> Proxy {
        Proxy::to(&self.url(None)).await
    }

    pub fn redis_url(&self) -> &str {
        &self.redis
    }

    /// The environment of a worker process; later pairs win.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("DATABASE_URL", self.url(Some("test_worker"))),
            ("QUEUES", "critical,default,bulk,maintenance".to_owned()),
            ("MONALISA_SQS_REGION", "us-east-1".to_owned()),
            ("MONALISA_SQS_ENDPOINT", self.sqs.endpoint()),
            ("MONALISA_SQS_QUEUE_URL_PREFIX", self.sqs.queue_url("t-")),
            ("MONALISA_SQS_LOCAL_CREDENTIALS", "true".to_owned()),
            ("MONALISA_SQS_WAIT_SECONDS", "1".to_owned()),
            ("MONALISA_STOP_TIMEOUT_MS", "15000".to_owned()),
            ("MONALISA_HEALTH_PORT", "0".to_owned()),
            ("MONALISA_VALKEY_URL", self.redis.clone()),
            ("MONALISA_RELAY_SWEEP_MS", "200".to_owned()),
            ("MONALISA_BACKOFF_BASE_MS", "100".to_owned()),
            ("MONALISA_LOG_FORMAT", "json".to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    /// Runs a command of a binary to its end, as the superuser of the database.
    pub fn command(&self, program: &str, arguments: &[&str]) -> std::process::Output {
        self.command_with(program, arguments, &[])
    }

    /// The same as a role.
    pub fn command_as(&self, role: &str, program: &str, arguments: &[&str]) -> std::process::Output {
        self.command_with(program, arguments, &[("DATABASE_URL", &self.url(Some(role)))])
    }

    /// The same with other variables.
    pub fn command_with(&self, program: &str, arguments: &[&str], changes: &[(&str, &str)]) -> std::process::Output {
        std::process::Command::new(binary(program))
            .args(arguments)
            .env_clear()
            .envs(self.environment())
            .env("DATABASE_URL", self.url(None))
            .envs(changes.iter().copied())
            .output()
            .expect("it runs")
    }

    /// Starts `test-workers` and waits until it is ready.
    pub async fn start(&self, changes: &[(&str, &str)]) -> Process {
        let process = self.spawn("test-workers", changes);
        process.log("ready").await;
        process
    }

    /// Starts a relay and workers on all queues.
    pub async fn workers(&self) -> Process {
        self.start(&[("MONALISA_RELAY", "true")]).await
    }

    pub fn spawn(&self, program: &str, changes: &[(&str, &str)]) -> Process {
        self.spawn_with(program, &[], changes)
    }

    /// Starts a command of a binary.
    pub fn spawn_with(&self, program: &str, arguments: &[&str], changes: &[(&str, &str)]) -> Process {
        let mut environment = self.environment();
        environment.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Process::spawn(&binary(program), arguments, environment)
    }

    /// Dispatches a task of tenant 1 and commits.
    pub async fn dispatch(&self, unit: &str, payload: &str) -> Uuid {
        self.one("select work.dispatch($1, $2::text::jsonb, 1)", &[&unit, &payload]).await.get(0)
    }

    pub async fn one(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Row {
        self.db.query_one(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.one(sql, &[]).await.get(0)
    }

    /// Waits until a run has this status.
    pub async fn run_is(&self, run_id: Uuid, status: &str) {
        wait_for(&format!("run {run_id} to be {status}"), async || {
            let row = self.one("select status from work.task_runs where run_id = $1", &[&run_id]).await;
            (row.get::<_, &str>(0) == status).then_some(())
        })
        .await;
    }

    /// Waits until this query counts so many.
    pub async fn count_is(&self, sql: &str, expected: i64) {
        wait_for(&format!("{sql} to be {expected}"), async || (self.count(sql).await == expected).then_some(())).await;
    }

    /// Waits until so many rows of the outbox of tenants are sent, in all; fails after this time.
    pub async fn sent_within(&self, rows: i64, limit: Duration) {
        let began = Instant::now();
        self.count_is("select count(*) from work.outbox_messages where sent_at is not null", rows).await;
        in_time(began, limit);
    }

    /// How many messages were sent so far, by what the SQS engine was asked.
    pub fn messages_sent(&self) -> u64 {
        self.sqs.calls()["entries"]["SendMessageBatch"].as_u64().unwrap_or(0)
    }

    /// The trail of a run, in order.
    pub async fn trail(&self, run_id: Uuid) -> Vec<String> {
        let rows = self.db.query("select event from work.run_events where run_id = $1 order by id", &[&run_id]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Rows that handlers committed for this run.
    pub async fn effects(&self, run_id: Uuid) -> i64 {
        self.one("select count(*) from public.effects where run_id = $1", &[&run_id]).await.get(0)
    }

    /// A client to look at the queues with.
    pub async fn queues(&self) -> aws_sdk_sqs::Client {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(aws_sdk_sqs::config::BehaviorVersion::latest())
            .http_client(http)
            .region(aws_sdk_sqs::config::Region::new("us-east-1"))
            .endpoint_url(self.sqs.endpoint())
            .credentials_provider(aws_credential_types::Credentials::new("t", "t", None, None, "t"))
            .build();
        aws_sdk_sqs::Client::from_conf(config)
    }

    /// Visible and hidden messages of a queue (`default`, `default-dlq`, …).
    pub async fn messages(&self, queue: &str) -> (i64, i64) {
        use aws_sdk_sqs::types::QueueAttributeName::{
            ApproximateNumberOfMessages as Visible, ApproximateNumberOfMessagesNotVisible as Hidden,
        };
        let answer = self
            .queues()
            .await
            .get_queue_attributes()
            .queue_url(self.sqs.queue_url(&format!("t-{queue}")))
            .attribute_names(Visible)
            .attribute_names(Hidden)
            .send()
            .await
            .expect("the queue is there");
        let attributes = answer.attributes.expect("attributes");
        let number = |name| attributes.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        (number(&Visible), number(&Hidden))
    }

    /// Waits until a queue holds so many visible messages and none hidden.
    pub async fn messages_are(&self, queue: &str, visible: i64) {
        wait_for(&format!("{queue} to hold {visible}"), async || (self.messages(queue).await == (visible, 0)).then_some(())).await;
    }

    /// Receives what a dead-letter queue holds, body and attributes.
    pub async fn dead_letters(&self, queue: &str) -> Vec<aws_sdk_sqs::types::Message> {
        let answer = self
            .queues()
            .await
            .receive_message()
            .queue_url(self.sqs.queue_url(&format!("t-{queue}-dlq")))
            .max_number_of_messages(10)
            .message_attribute_names("All")
            .send()
            .await
            .expect("the queue is there");
        answer.messages.unwrap_or_default()
    }

    /// Sends a body by hand.
    pub async fn send(&self, queue: &str, body: &str) {
        let url = self.sqs.queue_url(&format!("t-{queue}"));
        self.queues().await.send_message().queue_url(url).message_body(body).send().await.expect("sent");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Databases of passed tests go; those of failed ones stay for whoever looks, until the stack is wiped.
        if std::thread::panicking() {
            eprintln!("the database of this test is {}", self.name);
            return;
        }
        if self.server != required("DATABASE_URL") {
            return;
        }
        let (url, name) = (self.server.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let admin = connect(&url).await;
                let _ = admin.execute(&format!("drop database {name} with (force)"), &[]).await;
            });
        });
        let _ = dropped.join();
    }
}
