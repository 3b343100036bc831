//! A PostgreSQL of a test's own, which may crash.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use uuid::Uuid;

use super::{certificates::Certificate, connect, redis_server::free_port, wait_for};

pub struct PgServer {
    port: u16,
    programs: PathBuf,
    folder: PathBuf,
}

impl PgServer {
    /// Makes a cluster and starts it with these settings.
    pub fn start(settings: &[&str]) -> PgServer {
        let server = PgServer::stopped(settings);
        server.go();
        server
    }

    /// The same with TLS: this certificate, and rules of access in place of those that let everybody in.
    pub fn start_with_tls(certificate: &Certificate, access: &[&str], settings: &[&str]) -> PgServer {
        let server = PgServer::stopped(&[&["ssl=on"], settings].concat());
        server.put_certificate(certificate);
        server.put("pg_hba.conf", &access.join("\n"));
        server.go();
        server
    }

    /// Makes a cluster with these settings.
    fn stopped(settings: &[&str]) -> PgServer {
        let folder = PathBuf::from(format!("/tmp/monalisa-pg-{}", Uuid::new_v4().simple()));
        let server = PgServer { port: free_port(), programs: programs(), folder };
        server.run("initdb", &["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
        server.set(&[&["listen_addresses=127.0.0.1", "max_connections=500"], settings].concat());
        server
    }

    /// Writes settings, those of its own place among them; the last of a name counts.
    fn set(&self, settings: &[&str]) {
        let folder = self.folder.display().to_string();
        let own = [format!("port={}", self.port), format!("unix_socket_directories={folder}")];
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            let (name, value) = setting.split_once('=').expect("name=value");
            self.shell(&format!("echo \"{name} = '{value}'\" >> {folder}/postgresql.conf"));
        }
    }

    /// A hot standby of it, which follows it.
    pub fn standby(&self) -> PgServer {
        let folder = PathBuf::from(format!("/tmp/monalisa-pg-{}", Uuid::new_v4().simple()));
        let standby = PgServer { port: free_port(), programs: programs(), folder };
        let from = self.port.to_string();
        standby.run("pg_basebackup", &["-h", "127.0.0.1", "-p", &from, "-U", "postgres", "-R", "-c", "fast", "--no-sync"]);
        standby.set(&[]);
        standby.go();
        standby
    }

    fn put_certificate(&self, certificate: &Certificate) {
        self.put("server.crt", &certificate.chain);
        self.put("server.key", &certificate.key);
    }

    /// Shows another certificate from now on.
    pub async fn change_certificate(&self, certificate: &Certificate) {
        let loaded =
            async || connect(&self.url()).await.query_one("select pg_conf_load_time()::text", &[]).await.unwrap().get::<_, String>(0);
        let before = loaded().await;
        self.put_certificate(certificate);
        self.run("pg_ctl", &["reload"]);
        wait_for("the server to load its certificate", async || (loaded().await != before).then_some(())).await;
    }

    /// Writes a file of its folder, which nobody else may read.
    fn put(&self, name: &str, text: &str) {
        self.shell(&format!("umask 077; cat > {}/{name} <<'END'\n{text}\nEND", self.folder.display()));
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("server.log")).expect("its log")
    }

    /// Starts it, also after a crash, and waits until it has recovered.
    pub fn go(&self) {
        let path = self.folder.join("server.log");
        let log = path.display().to_string();
        let start = format!("{}/pg_ctl -D {} -l {log} -w -t 60 start", self.programs.display(), self.folder.display());
        // After a crash what it shared may still be there, or somebody may use its port for a moment.
        for _ in 0..5 {
            if is_done(&start) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        panic!("it does not start: {}", std::fs::read_to_string(path).unwrap_or_default());
    }

    /// Stops it as a crash does: nothing is flushed.
    pub fn crash(&self) {
        self.run("pg_ctl", &["-m", "immediate", "-t", "20", "stop"]);
    }

    /// Stops it and starts it again. `mode` is fast or immediate.
    pub fn restart(&self, mode: &str) {
        self.run("pg_ctl", &["-m", mode, "-w", "-t", "60", "stop"]);
        self.go();
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let words = arguments.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        self.shell(&format!("{}/{program} -D {} {words}", self.programs.display(), self.folder.display()));
    }

    fn shell(&self, command: &str) {
        as_postgres(command);
    }
}

/// Neither PostgreSQL nor PgBouncer runs as root.
pub fn as_postgres(command: &str) {
    assert!(is_done(command), "{command}");
}

fn is_done(command: &str) -> bool {
    let root = Command::new("id").arg("-u").output().expect("id runs").stdout.starts_with(b"0\n");
    let mut shell = if root { Command::new("runuser") } else { Command::new("sh") };
    if root {
        shell.args(["-u", "postgres", "--", "sh"]);
    }
    let done = shell.args(["-c", command]).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.expect("a shell runs").success()
}

impl Drop for PgServer {
    fn drop(&mut self) {
        self.shell(&format!("{0}/pg_ctl -D {1} -m immediate -t 20 stop; rm -rf {1}", self.programs.display(), self.folder.display()));
    }
}

/// Where its programs are.
fn programs() -> PathBuf {
    let installed =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path().join("bin"));
    let known = ["/usr/pgsql-15/bin", "/usr/pgsql-16/bin", "/usr/pgsql-17/bin", "/usr/bin"].map(PathBuf::from);
    installed.chain(known).find(|folder| folder.join("initdb").exists()).expect("PostgreSQL is installed")
}
