//! Real processes: started, listened to, signalled, killed.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::wait_for;

/// A binary of the workspace, built beside this test program.
pub fn binary(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("a path");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push(name);
    assert!(path.exists(), "{name} is not built: run the tests with `make test`");
    path
}

/// A process whose log is kept; killed when dropped.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub fn spawn(program: &std::path::Path, arguments: &[&str], environment: Vec<(String, String)>) -> Process {
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let output = child.stderr.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Process { child, lines }
    }

    /// Everything it has logged so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a log line with this message and returns it.
    pub async fn log(&self, message: &str) -> Value {
        let found = |line: &String| {
            let value: Value = serde_json::from_str(line).ok()?;
            value["message"].as_str().is_some_and(|text| text.starts_with(message)).then_some(value)
        };
        wait_for(&format!("the log line {message:?} among {:#?}", self.lines()), async || self.lines().iter().find_map(found)).await
    }

    /// The port of its health endpoint.
    pub async fn health_port(&self) -> u16 {
        self.log("ready").await["health_port"].as_u64().expect("a port") as u16
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(sent.success(), "kill -{name}");
    }

    /// kill -9, and gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its exit.
    pub async fn exit(&mut self) -> ExitStatus {
        wait_for("the process to exit", async || self.child.try_wait().expect("a process")).await
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is gone.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("a process").is_some()
    }

    /// SIGTERM, and waits for its exit.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.exit().await
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }

    /// Seconds of a core that it has used so far.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        // After the name, which may hold anything; user and system time are in hundredths.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
    }

    /// Lets log lines that are on their way arrive, after its exit.
    pub async fn all_lines(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.lines()
    }
}

/// What a process costs while something is wrong.
pub struct Cost<'a> {
    process: &'a Process,
    began: Instant,
    cpu: f64,
    lines: usize,
}

impl Process {
    /// Begins to measure.
    pub fn cost(&self) -> Cost<'_> {
        Cost { process: self, began: Instant::now(), cpu: self.cpu_seconds(), lines: self.lines().len() }
    }
}

impl Cost<'_> {
    /// Less than a fifth of a core, and quiet.
    pub fn is_small(&self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let cpu = self.process.cpu_seconds() - self.cpu;
        assert!(cpu < 0.2 * seconds.max(2.0), "{cpu} s of a core in {seconds} s");
        self.is_quiet();
    }

    /// One log line a second at most, and one of each part that begins to fail; beside those of runs that are done meanwhile.
    pub fn is_quiet(&self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut lines = self.process.lines().split_off(self.lines);
        lines.retain(|line| !line.contains("\"message\":\"succeeded\""));
        assert!(lines.len() as f64 <= seconds + 8.0, "{} lines in {seconds} s: {lines:#?}", lines.len());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of a process\n{}", self.lines().join("\n"));
        }
    }
}
