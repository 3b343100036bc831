//! The examples for API teams, run for real: each schedules in its own transaction, is refused, rolls back, and wakes the relay.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

use monalisa::WAKE_KEY;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::support::{PATIENCE, World, binary};

pub const EXAMPLES: &str = "tests/examples";

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The Python with the packages of the examples, which `scripts/setup` made.
pub fn python() -> PathBuf {
    let dev = std::env::var_os("MONALISA_DEV_DIR").map_or_else(|| root().join(".dev"), PathBuf::from);
    dev.join("python/bin/python")
}

/// A program with nothing of this process in its environment but the path.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

pub fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The table that the examples write, in the database of a world.
pub async fn make_reports(world: &World) {
    let sql = "create table public.reports (id bigint primary key, format text not null, finished_at timestamptz);
               grant select, insert on public.reports to test_api;
               grant select, update on public.reports to test_worker";
    world.db.batch_execute(sql).await.unwrap();
}

/// How an example is started, but for its environment and the id of the report.
struct Example {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Example {
    fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Example {
        Example { program: program.into(), arguments: arguments.iter().map(OsString::from).collect() }
    }

    fn start(&self, world: &World, report: i64, valkey: Option<&str>, catalogue: &Path) -> Output {
        let mut command = command(&self.program);
        for argument in &self.arguments {
            command.arg(
                argument.to_str().unwrap().replace("REPORT", &report.to_string()).replace("DATABASE_URL", &world.url(Some("test_api"))),
            );
        }
        command.env("DATABASE_URL", world.url(Some("test_api"))).env("MONALISA_TASKS_CATALOG", catalogue);
        command.envs(valkey.map(|url| ("MONALISA_VALKEY_URL", url)));
        command
            .current_dir(root())
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}; run scripts/setup --examples", self.program.display()))
    }

    /// The whole scene with a report of this id, and the run that it scheduled.
    async fn schedules(&self, world: &World, report: i64, valkey: Option<&str>, catalogue: &Path) -> Uuid {
        let said = said(&self.start(world, report, valkey, catalogue));
        let lines: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
        let [("scheduled", run), ("again", again), ("refused", "ML008"), ("rolled_back", gone)] = lines[..] else {
            panic!("it said {said:?}");
        };
        assert_eq!(run, again, "the key gives the first run");
        let (run, gone): (Uuid, Uuid) = (run.parse().unwrap(), gone.parse().unwrap());
        let kept = "select tenant_id, unit, payload::text, (select count(*) from work.outbox_messages o where o.run_id = r.run_id)
                      from work.task_runs r where run_id = $1";
        let row = world.one(kept, &[&run]).await;
        assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1), row.get::<_, i64>(3)), (1, "reports.export", 1));
        assert_eq!(row.get::<_, &str>(2), format!(r#"{{"format": "pdf", "report_id": {report}}}"#));
        let left = "select (select count(*) from work.task_runs where run_id = $1) + (select count(*) from work.outbox_messages where run_id = $1)
                         + (select count(*) from work.idempotency_keys where run_ids = array[$1]) + (select count(*) from public.reports where id = $2)";
        assert_eq!(world.one(left, &[&gone, &(report + 1)]).await.get::<_, i64>(0), 0, "the rollback left something");
        run
    }
}

/// Every promise of an example: what it writes, its wake, and that Valkey may be away.
async fn holds(example: Example) {
    let world = World::new().await;
    make_reports(&world).await;
    let catalogue = std::env::temp_dir().join(format!("tasks-{}.json", Uuid::new_v4()));
    said(&world.command("test-workers", &["tasks", "generate", catalogue.to_str().unwrap()]));

    // Nobody pops here: what is pushed stays, and a long list is cut.
    let redis = redis::Client::open(world.redis_url()).unwrap();
    let mut valkey = redis.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("RPUSH").arg(WAKE_KEY).arg(vec![0; 100]).exec_async(&mut valkey).await.unwrap();
    let mut runs = vec![example.schedules(&world, 7, Some(world.redis_url()), &catalogue).await];
    let list: Vec<i64> = redis::cmd("LRANGE").arg(WAKE_KEY).arg(0).arg(-1).query_async(&mut valkey).await.unwrap();
    assert!(list[0] == 1 && list.len() == 16, "the list of wakes is {list:?}");

    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    // It accepts by itself, and nobody answers.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let urls = [dead, hanging.local_addr().unwrap()].map(|address| format!("redis://{address}/"));
    for (number, valkey) in urls.iter().map(|url| Some(&**url)).chain([None]).enumerate() {
        let began = Instant::now();
        runs.push(example.schedules(&world, 10 * (number as i64 + 1), valkey, &catalogue).await);
        assert!(began.elapsed() < PATIENCE / 2, "with {valkey:?} it took {:?}", began.elapsed());
    }
    std::fs::remove_file(catalogue).unwrap();

    let _workers = world.workers().await;
    for run in &runs {
        world.run_is(*run, "succeeded").await;
    }
    assert_eq!(world.count("select count(*) from public.reports where finished_at is not null").await, 4);
    assert_eq!(world.count("select count(*) from public.reports").await, 4);
    assert_eq!(world.count("select count(*) from work.task_runs").await, 4);
}

#[tokio::test]
async fn psql_schedules_in_its_own_transaction() {
    let arguments = ["-qAtX", "-v", "report_id=REPORT", "-f", "tests/examples/psql/schedule_report.sql", "DATABASE_URL"];
    holds(Example::new("psql", &arguments)).await;
}

#[tokio::test]
async fn python_schedules_in_its_own_transaction() {
    holds(Example::new(python(), &["tests/examples/python/schedule_report.py", "REPORT"])).await;
}

#[tokio::test]
async fn node_schedules_in_its_own_transaction() {
    holds(Example::new("node", &["tests/examples/node/schedule_report.js", "REPORT"])).await;
}

#[tokio::test]
async fn rust_with_tokio_postgres_schedules_in_its_own_transaction() {
    holds(Example::new(binary("example-tokio-postgres"), &["REPORT"])).await;
}

#[tokio::test]
async fn rust_with_sqlx_schedules_in_its_own_transaction() {
    holds(Example::new(binary("example-sqlx"), &["REPORT"])).await;
}

#[tokio::test]
async fn a_wake_of_an_example_is_heard_long_before_the_sweep() {
    let world = World::new().await;
    make_reports(&world).await;
    let _workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_RELAY_SWEEP_MS", "60000")]).await;
    let example = Example::new(python(), &["tests/examples/python/schedule_report.py", "REPORT"]);
    let mut waits = Vec::new();
    for report in [7, 17, 27, 37, 47] {
        let run = example.schedules(&world, report, Some(world.redis_url()), Path::new("")).await;
        world.run_is(run, "succeeded").await;
        let sql = "select extract(epoch from sent_at - created_at)::float8 from work.outbox_messages where run_id = $1";
        waits.push(world.one(sql, &[&run]).await.get::<_, f64>(0));
    }
    waits.sort_by(f64::total_cmp);
    assert!(waits[2] < 2.0, "from the row to its send in seconds: {waits:?}");
}

#[tokio::test]
async fn a_rust_api_does_not_start_without_its_catalogue_and_says_where_that_differs() {
    let world = World::without_queues().await;
    make_reports(&world).await;
    let example = Example::new(binary("example-tokio-postgres"), &["REPORT"]);
    let file = std::env::temp_dir().join(format!("tasks-{}.json", Uuid::new_v4()));
    let refused = |catalogue: &Path| {
        let output = example.start(&world, 7, None, catalogue);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(Path::new("")).contains("MONALISA_TASKS_CATALOG is not set"));
    assert!(refused(&file).contains("cannot be read"));
    said(&world.command("workers", &["tasks", "generate", file.to_str().unwrap()]));
    let lacking = refused(&file);
    assert!(lacking.contains("holds no task reports.export") && lacking.contains("before the API"), "{lacking}");
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0);

    // Its own, but not the one that was loaded: a warning.
    let given = root().join(EXAMPLES).join("tasks_for_tests.json");
    let output = example.start(&world, 7, None, &given);
    assert!(String::from_utf8_lossy(&output.stderr).contains("another catalogue"), "{output:?}");
    said(&output);
    said(&world.command("test-workers", &["tasks", "generate", file.to_str().unwrap()]));
    let output = example.start(&world, 7, None, &file);
    assert!(output.stderr.is_empty(), "{output:?}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn the_java_that_is_shown_compiles() {
    // A program of 300 MB that nothing else here needs: where it is not there, this is not checked.
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join("javac").is_file()) {
        eprintln!("there is no javac here");
        return;
    }
    let classes = std::env::temp_dir().join(format!("classes-{}", Uuid::new_v4()));
    let source = root().join(EXAMPLES).join("java/ScheduleReport.java");
    let compiled = command("javac").args(["-Xlint:all", "-Werror", "-d"]).arg(&classes).arg(source).output().unwrap();
    said(&compiled);
    std::fs::remove_dir_all(classes).unwrap();
}

#[test]
fn the_lockfile_of_the_node_example_names_no_registry() {
    let lock = std::fs::read_to_string(root().join(EXAMPLES).join("node/package-lock.json")).unwrap();
    assert!(lock.contains("\"integrity\"") && !lock.contains("\"resolved\""));
}
