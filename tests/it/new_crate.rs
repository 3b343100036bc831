//! A crate of one's own, made by one command: the commands of the README and of the page for handler authors, one after the other, without
//! a network. It builds for minutes, so `make test` runs it alone, after the others.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{
    docs::{blocks, read, root, section},
    support::{Process, World, wait_for},
};

/// The folder of this build, which the new crate shares.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.ancestors().find(|folder| folder.join("debug").is_dir()).expect("a target folder").to_owned()
}

struct Crate<'a> {
    world: &'a World,
    folder: PathBuf,
}

impl Crate<'_> {
    /// The commands of a page, as they are carried out here.
    fn script(&self, code: &str) -> String {
        let lines = code.lines().filter(|line| !line.starts_with("eval ") && !line.starts_with("QUEUES="));
        let code = lines.collect::<Vec<_>>().join("\n");
        code.replace("../my-workers", self.folder.to_str().unwrap()).replace("../monalisa", root().to_str().unwrap())
    }

    fn shell(&self, folder: &Path, code: &str) -> Output {
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", code])
            .current_dir(folder)
            .envs(self.world.environment())
            .env("DATABASE_URL", self.world.url(None))
            .env("CARGO_TARGET_DIR", target())
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TERM_COLOR", "never")
            // Set by the cargo that runs this test.
            .env_remove("CARGO_MANIFEST_DIR")
            .output()
            .expect("bash runs")
    }

    fn run(&self, folder: &Path, code: &str) -> String {
        let output = self.shell(folder, code);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{code}\n{said}\n{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// What it says when it fails.
    fn fails(&self, folder: &Path, code: &str) -> String {
        let output = self.shell(folder, code);
        assert!(!output.status.success(), "{code}\n{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).unwrap();
    }
}

impl Drop for Crate<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.folder.parent().unwrap());
    }
}

#[tokio::test]
#[ignore = "it builds a crate: make test runs it after the others"]
async fn the_first_handler_is_made_tested_and_run_by_the_commands_of_the_readme() {
    let world = World::new().await;
    let folder = std::env::temp_dir().join(format!("monalisa-new-{}", uuid::Uuid::new_v4().simple())).join("my-workers");
    // It takes the dependencies as they are built for us.
    let cargo = folder.parent().unwrap().join(".cargo");
    std::fs::create_dir_all(&cargo).unwrap();
    let profile = "[profile.dev.package.\"*\"]\nopt-level = 1\n[profile.dev.package.monalisa]\nopt-level = 0\n";
    std::fs::write(cargo.join("config.toml"), profile).unwrap();
    let own = Crate { world: &world, folder };
    let readme = read("README.md");
    let first = section(&readme, "## Your first handler");
    let commands: Vec<String> = blocks(first).into_iter().filter(|(info, _)| info == "sh").map(|(_, code)| code).collect();
    let [make, use_it] = &commands[..] else { panic!("{commands:?}") };

    // Made, tested, checked, migrated, without a network.
    own.run(&root(), &own.script(make));
    let said = own.run(&own.folder, &own.script(use_it));
    assert!(said.contains("3 passed") && said.contains("are valid") && said.contains("added     reports.generate"), "{said}");
    let again = own.fails(&root(), own.script(make).lines().next().unwrap());
    assert!(again.contains("is there already; nothing was written"), "{again}");

    // Run.
    assert!(use_it.lines().last().unwrap().starts_with("QUEUES=critical,default,bulk,maintenance MONALISA_RELAY=true cargo run"));
    let mut environment = world.environment();
    environment.extend([("DATABASE_URL".to_owned(), world.url(None)), ("MONALISA_RELAY".to_owned(), "true".to_owned())]);
    let mut workers = Process::spawn(&target().join("debug/my-workers"), &[], environment);
    workers.log("ready").await;
    let dispatch =
        first.lines().find_map(|line| line.strip_prefix("    ").filter(|line| line.starts_with("select work.dispatch("))).unwrap();
    let run: uuid::Uuid = world.one(dispatch, &[]).await.get(0);
    world.run_is(run, "succeeded").await;
    assert_eq!(world.count("select count(*) from reports where finished_at is not null").await, 1);
    assert!(workers.stop().await.success());

    // The page, and the crate's own README.
    for page in ["docs/for-handler-authors.md", "tests/example/README.md"] {
        for (_, code) in blocks(&read(page)).into_iter().filter(|(info, _)| info == "sh") {
            world.db.batch_execute("drop table if exists reports, sessions_recorded").await.unwrap();
            let said = own.run(&own.folder, &own.script(&code));
            assert!(said.contains("are valid"), "{page}: {said}");
        }
    }
    wait_for("the run of its README", async || {
        (world.count("select count(*) from work.task_runs where unit = 'reports.generate' and status = 'queued'").await == 1).then_some(())
    })
    .await;

    // Mistakes that compile are told by the check, all at once, each with its place.
    let reports = std::fs::read_to_string(own.folder.join("src/reports.rs")).unwrap();
    let place = format!("src/reports.rs:{}", reports.lines().position(|line| line == "task! {").unwrap() + 1);
    own.write(
        "src/reports.rs",
        &reports.replace(
            "    name: \"reports.generate\",\n    queue: \"default\",\n",
            "    name: \"Reports.generate\",\n    queue: \"fast\",\n    context: \"nobody\",\n    overlap: \"maybe\",\n    concurrency: 0,\n    \
             timeout_seconds: 40_000,\n    schedule: \"rate(0 hours)\",\n",
        ),
    );
    let said = own.fails(&own.folder, "cargo run --quiet -- tasks check");
    for problem in
        ["dot-separated segments", "no queue \"fast\"", "context \"nobody\"", "overlap \"maybe\"", "concurrency is 1", "11 hours", "rate"]
    {
        assert!(
            said.lines().any(|line| line.starts_with(&format!("{place}: Reports.generate: ")) && line.contains(problem)),
            "{problem}: {said}"
        );
    }

    // Others do not compile, and the compiler points at them.
    for (old, new, expected) in [
        ("queue: \"default\",", "queue: \"default\",\n    timeout_seconds: \"60\",", &["expected `u32`, found `&str`"][..]),
        ("queue: \"default\",", "queue: \"default\",\n    concurency: 2,", &["no field named `concurency`"]),
        ("queue: \"default\",", "queue: default,", &["cannot find value `default`"]),
        ("name: \"reports.generate\",", "name: 7,", &["expected `&str`, found integer"]),
        ("    queue: \"default\",\n", "", &["task! takes `payload`, `handler`, `name` and `queue` in this order"]),
        (
            "    name: \"reports.generate\",\n    queue: \"default\",",
            "    queue: \"default\",\n    name: \"reports.generate\",",
            &["in this order"],
        ),
        ("handler: generate_report,", "handler: generate_reports,", &["cannot find function `generate_reports`"]),
        (
            "payload: GenerateReport, run: &TaskRun)",
            "payload: GenerateReport)",
            &["this function takes 1 argument but 2 arguments were supplied"],
        ),
        ("#[derive(Serialize, Deserialize)]", "#[derive(Serialize)]", &["Deserialize", "GenerateReport"]),
    ] {
        assert!(reports.contains(old), "{old}");
        own.write("src/reports.rs", &reports.replacen(old, new, 1));
        let said = own.fails(&own.folder, "cargo build --quiet");
        println!("--- {new}\n{said}");
        for text in expected.iter().chain(&["src/reports.rs:"]) {
            assert!(said.contains(text), "{new}: no {text}: {said}");
        }
    }
}
