//! A PostgreSQL of a test's own, which may crash.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use uuid::Uuid;

use super::redis_server::free_port;

pub struct PgServer {
    port: u16,
    programs: PathBuf,
    folder: PathBuf,
}

impl PgServer {
    /// Makes a cluster and starts it with these settings.
    pub fn start(settings: &[&str]) -> PgServer {
        let folder = PathBuf::from(format!("/tmp/monalisa-pg-{}", Uuid::new_v4().simple()));
        let server = PgServer { port: free_port(), programs: programs(), folder };
        server.run("initdb", &["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
        let port = server.port.to_string();
        let folder = server.folder.display().to_string();
        let own =
            ["listen_addresses=127.0.0.1", &format!("port={port}"), &format!("unix_socket_directories={folder}"), "max_connections=500"]
                .map(str::to_owned);
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            let (name, value) = setting.split_once('=').expect("name=value");
            server.shell(&format!("echo \"{name} = '{value}'\" >> {folder}/postgresql.conf"));
        }
        server.go();
        server
    }

    /// Starts it, also after a crash, and waits until it has recovered.
    pub fn go(&self) {
        let log = self.folder.join("server.log").display().to_string();
        self.run("pg_ctl", &["-l", &log, "-w", "-t", "60", "start"]);
    }

    /// Stops it as a crash does: nothing is flushed.
    pub fn crash(&self) {
        self.run("pg_ctl", &["-m", "immediate", "-t", "20", "stop"]);
    }

    /// Stops it and starts it again. `mode` is fast or immediate.
    pub fn restart(&self, mode: &str) {
        self.run("pg_ctl", &["-m", mode, "-w", "-t", "60", "restart"]);
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let words = arguments.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        self.shell(&format!("{}/{program} -D {} {words}", self.programs.display(), self.folder.display()));
    }

    /// PostgreSQL does not run as root.
    fn shell(&self, command: &str) {
        let root = Command::new("id").arg("-u").output().expect("id runs").stdout.starts_with(b"0\n");
        let mut shell = if root { Command::new("runuser") } else { Command::new("sh") };
        if root {
            shell.args(["-u", "postgres", "--", "sh"]);
        }
        let done = shell.args(["-c", command]).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(done.expect("a shell runs").success(), "{command}");
    }
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
