//! Encrypted connections to PostgreSQL and Valkey: what each mode checks, what a refusal says, and that the work is done over them.

use std::sync::{Arc, Mutex};

use monalisa::{Client, database::Database};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::{
    config::refused,
    support::{
        RELAY, World,
        certificates::{Authority, self_signed},
        encoded, engine,
        pg_server::PgServer,
        redis_server::{RedisServer, free_port, info},
        wait_for,
    },
};

/// The tests look in as superuser; others have to encrypt.
const ACCESS: &[&str] = &[
    "host all postgres 127.0.0.1/32 trust",
    "hostnossl all plain 127.0.0.1/32 trust",
    "hostssl all plain 127.0.0.1/32 reject",
    "hostssl all all 127.0.0.1/32 trust",
];

const MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];

/// Whether a session to this URL is encrypted, or why there is none.
async fn encrypted(url: &str) -> Result<bool, String> {
    let client = Database::parse(url)?.connect("test").await.map_err(|error| error.to_string())?;
    let row = client.query_one("select ssl from pg_stat_ssl where pid = pg_backend_pid()", &[]).await.unwrap();
    Ok(row.get(0))
}

/// The URL by way of this host in this mode, with a password that nothing may quote; `roots` is a file of authorities, or empty.
fn url(server: &str, host: &str, mode: &str, roots: &str) -> String {
    let url = server.replace("127.0.0.1", host).replace('@', ":Hunter2@");
    let roots = if roots.is_empty() { String::new() } else { format!("&sslrootcert={roots}") };
    format!("{url}?sslmode={mode}{roots}")
}

/// It is refused; the text tells all of this and not the password.
fn tells(answer: Result<bool, String>, parts: &[&str]) {
    let text = answer.expect_err("it is refused");
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("Hunter2"), "{text}");
}

#[tokio::test]
async fn each_sslmode_encrypts_and_checks_what_libpq_does() {
    let authority = Authority::new("Ours");
    let server = PgServer::start_with_tls(&authority.certificate("localhost"), ACCESS, &[]);
    let pg = server.url();
    for mode in MODES {
        let answer = encrypted(&url(&pg, "localhost", mode, &authority.path())).await;
        assert_eq!(answer, Ok(mode != "disable"), "{mode}");
    }
    // By another name than the certificate has.
    for mode in ["prefer", "require", "verify-ca"] {
        assert_eq!(encrypted(&url(&pg, "127.0.0.1", mode, &authority.path())).await, Ok(true), "{mode}");
    }
    let answer = encrypted(&url(&pg, "127.0.0.1", "verify-full", &authority.path())).await;
    tells(answer, &["not valid for name \"127.0.0.1\"", "localhost", "connect by a name"]);
    // Without the authority nothing is checked, unless the mode says so.
    for mode in ["prefer", "require"] {
        assert_eq!(encrypted(&url(&pg, "localhost", mode, "")).await, Ok(true), "{mode}");
    }
    for mode in ["verify-ca", "verify-full"] {
        tells(encrypted(&url(&pg, "localhost", mode, "")).await, &["UnknownIssuer", "sslrootcert"]);
        tells(encrypted(&url(&pg, "localhost", mode, "system")).await, &["UnknownIssuer", "sslrootcert"]);
    }
    // Who has to encrypt and does not reads what the server says.
    let other = url(&pg, "localhost", "disable", "").replace("//postgres:", "//somebody:");
    tells(encrypted(&other).await, &["no pg_hba.conf entry", "no encryption", "28000"]);
    // Who may not encrypt is let in by `prefer`, which tries both.
    let owner = Database::parse(&url(&pg, "localhost", "prefer", "")).unwrap().connect("test").await.unwrap();
    owner.batch_execute("create role plain login").await.unwrap();
    for (mode, answer) in [("prefer", Some(false)), ("disable", Some(false)), ("require", None)] {
        let plain = url(&pg, "localhost", mode, "").replace("//postgres:", "//plain:");
        assert_eq!(encrypted(&plain).await.ok(), answer, "{mode}");
    }
    // Other parameters arrive as they are.
    let options = format!("{}&options=-c%20geqo%3Doff", url(&pg, "localhost", "verify-full", &authority.path()));
    let client = Database::parse(&options).unwrap().connect("test").await.unwrap();
    assert_eq!(client.query_one("show geqo", &[]).await.unwrap().get::<_, &str>(0), "off");
}

#[tokio::test]
async fn a_certificate_that_is_no_good_is_refused_with_the_reason_and_what_to_do() {
    let (authority, other) = (Authority::new("Ours"), Authority::new("Theirs"));
    let server = PgServer::start_with_tls(&authority.expired("localhost"), ACCESS, &[]);
    let pg = server.url();
    for mode in ["require", "verify-ca", "verify-full"] {
        let answer = encrypted(&url(&pg, "localhost", mode, &authority.path())).await;
        tells(answer, &["certificate expired", "renew the certificate of the server"]);
    }
    for mode in ["prefer", "require"] {
        assert_eq!(encrypted(&url(&pg, "localhost", mode, "")).await, Ok(true), "{mode} checks nothing");
    }
    server.change_certificate(&authority.certificate("localhost")).await;
    for mode in ["require", "verify-ca", "verify-full"] {
        tells(
            encrypted(&url(&pg, "localhost", mode, &other.path())).await,
            &["UnknownIssuer", "none of the trusted authorities signed it"],
        );
    }
    let itself = self_signed("localhost");
    server.change_certificate(&itself).await;
    let answer = encrypted(&url(&pg, "localhost", "verify-full", &authority.file("itself.crt", &itself.chain))).await;
    tells(answer, &["the server shows an authority itself"]);
}

#[tokio::test]
async fn a_server_without_tls_is_taken_by_prefer_and_refused_by_all_that_ask_for_it() {
    let world = World::without_queues().await;
    let pg = world.url(None).replace("localhost", "127.0.0.1");
    for mode in ["disable", "prefer"] {
        assert_eq!(encrypted(&url(&pg, "127.0.0.1", mode, "")).await, Ok(false), "{mode}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let answer = encrypted(&url(&pg, "127.0.0.1", mode, "")).await;
        tells(answer, &["server does not support TLS", "set ssl = on there, or sslmode=prefer or disable here"]);
    }
}

#[tokio::test]
async fn authorities_that_cannot_be_read_are_named_with_their_variable() {
    let world = World::without_queues().await;
    let authority = Authority::new("Ours");
    let begun = authority.file("begun.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (path, reason) in [
        ("/nowhere/authority.crt".to_owned(), "cannot be read"),
        (authority.file("text.crt", "this is no certificate"), "not a file of certificates"),
        (authority.file("none.crt", ""), "not a file of certificates"),
        (begun, "not a file of certificates"),
    ] {
        let database = url(&world.url(None), "127.0.0.1", "verify-full", &path);
        let valkey = format!("rediss://:Hunter2@127.0.0.1/?sslrootcert={path}");
        let text = refused(&world, &[("DATABASE_URL", &database), ("MONALISA_VALKEY_URL", &valkey)]).await;
        for name in ["DATABASE_URL", "MONALISA_VALKEY_URL"] {
            assert!(text.contains(&format!("{name}: sslrootcert {path}")) && text.contains(reason), "{text}");
        }
    }
    let valkey = format!("redis://:Hunter2@127.0.0.1/?sslrootcert={}", authority.path());
    let text = refused(&world, &[("MONALISA_VALKEY_URL", &valkey)]).await;
    assert!(text.contains("MONALISA_VALKEY_URL: sslrootcert goes together with rediss://"), "{text}");
}

#[tokio::test]
async fn a_database_that_never_answers_is_given_up_and_named() {
    let world = World::without_queues().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("postgres://somebody@127.0.0.1:{}/d", silent.local_addr().unwrap().port());
    for mode in ["disable", "verify-full"] {
        let text = refused(&world, &[("DATABASE_URL", &url(&silent, "127.0.0.1", mode, ""))]).await;
        assert!(text.contains("database d on 127.0.0.1 as somebody: no answer in 5 s"), "{text}");
    }
}

/// Forwards to a port, and keeps how each connection begins.
async fn overheard(target: u16) -> (u16, Arc<Mutex<Vec<[u8; 8]>>>) {
    let (port, heard) = (free_port(), Arc::new(Mutex::new(Vec::new())));
    let kept = heard.clone();
    engine().spawn(async move {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        while let Ok((mut client, _)) = listener.accept().await {
            let kept = kept.clone();
            tokio::spawn(async move {
                let mut beginning = [0; 8];
                client.read_exact(&mut beginning).await?;
                kept.lock().unwrap().push(beginning);
                let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
                server.write_all(&beginning).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    wait_for("the port to be open", async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
    (port, heard)
}

/// Length and code of the message that asks for TLS.
const ASKS_FOR_TLS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

#[tokio::test]
async fn a_worker_does_its_work_and_cancels_over_a_connection_that_is_verified() {
    let authority = Authority::new("Ours");
    let server = PgServer::start_with_tls(&authority.certificate("localhost"), ACCESS, &[]);
    let world = World::with_server(&server).await;
    let (port, heard) = overheard(server.port()).await;
    let mut address = url::Url::parse(&world.url(Some("test_worker"))).unwrap();
    address.set_port(Some(port)).unwrap();
    let verified = url(address.as_str(), "localhost", "verify-full", &authority.path());
    let doctor = world.command_with("test-workers", &["doctor"], &[("DATABASE_URL", &verified)]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.status.success() && said.contains("ok       database"), "{said}");

    let workers = world.start(&[RELAY, ("DATABASE_URL", &verified)]).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    let sessions = "select count(*) from pg_stat_activity a join pg_stat_ssl s using (pid)
                     where a.usename = 'test_worker' and a.application_name like 'monalisa %'";
    assert!(world.count(sessions).await > 0);
    assert_eq!(world.count(&format!("{sessions} and not s.ssl")).await, 0);

    // It holds two statements of a minute when its time is over.
    world.dispatch("t.greedy", "{}").await;
    let sleeping =
        "select count(*) from pg_stat_activity where state = 'active' and query like '%pg_sleep(60)%' and pid <> pg_backend_pid()";
    world.count_is(sleeping, 2).await;
    wait_for("both to be cancelled", async || (server.log().matches("canceling statement due to user request").count() >= 2).then_some(()))
        .await;
    world.count_is(sleeping, 0).await;
    drop(workers);
    let heard = heard.lock().unwrap().clone();
    assert!(heard.len() > 4 && heard.iter().all(|beginning| *beginning == ASKS_FOR_TLS), "{heard:?}");
}

#[tokio::test]
async fn a_worker_with_a_certificate_that_is_refused_does_not_start_and_says_why() {
    let (authority, world) = (Authority::new("Ours"), World::new().await);
    let server = PgServer::start_with_tls(&authority.expired("localhost"), ACCESS, &[]);
    let verified = url(&server.url(), "localhost", "verify-full", &authority.path());
    let text = refused(&world, &[("DATABASE_URL", &verified)]).await;
    assert!(text.contains("certificate expired") && text.contains("renew the certificate of the server"), "{text}");
    let doctor = world.command_with("test-workers", &["doctor"], &[("DATABASE_URL", &verified)]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && said.contains("PROBLEM  database") && said.contains("certificate expired"), "{said}");
    assert!(!said.contains("Hunter2"), "{said}");
}

/// A Redis with TLS beside its other port; and its URL with TLS.
async fn redis_with_tls(authority: &Authority, certificate: &crate::support::certificates::Certificate) -> (RedisServer, String) {
    let port = free_port().to_string();
    let (chain, key) =
        (authority.file(&format!("{port}.crt"), &certificate.chain), authority.file(&format!("{port}.key"), &certificate.key));
    let options =
        ["--tls-port", &port, "--tls-cert-file", &chain, "--tls-key-file", &key, "--tls-ca-cert-file", &chain, "--tls-auth-clients", "no"];
    (RedisServer::start(&options).await, format!("rediss://localhost:{port}/"))
}

#[tokio::test]
async fn wakes_come_over_tls_with_a_password_of_every_character() {
    let authority = Authority::new("Ours");
    let (redis, address) = redis_with_tls(&authority, &authority.certificate("localhost")).await;
    let mut look = redis.connect().await;
    let password: String = (' '..='~').chain("żół 漢字😀".chars()).collect();
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(&password).exec_async(&mut look).await.unwrap();
    let address = address.replace("//", &format!("//:{}@", encoded(&password)));
    let address = format!("{address}?sslrootcert={}", authority.path());

    let world = World::new().await;
    let workers = world.start(&[RELAY, ("MONALISA_VALKEY_URL", &address), ("MONALISA_RELAY_SWEEP_MS", "600000")]).await;
    wait_for("the relay to listen", async || (info(&mut look, "blocked_clients").await == 1).then_some(())).await;
    let run = world.dispatch("t.ok", "{}").await;
    let client = Client::new(Some(&address)).unwrap();
    let succeeded = format!("select count(*) from work.task_runs where run_id = '{run}' and status = 'succeeded'");
    wait_for("the relay to be woken", async || {
        // One that takes too long is lost: the machine may be busy.
        client.wake().await;
        (world.count(&succeeded).await == 1).then_some(())
    })
    .await;
    let doctor = world.command_with("test-workers", &["doctor"], &[("MONALISA_VALKEY_URL", &address)]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("ok       valkey"), "{doctor:?}");
    drop(workers);
}

#[tokio::test]
async fn a_valkey_whose_certificate_is_refused_is_told_with_the_reason_and_the_work_goes_on() {
    let (authority, world) = (Authority::new("Ours"), World::new().await);
    let (good, expired) = (authority.certificate("localhost"), authority.expired("localhost"));
    let ((_good, good), (_expired, expired)) = (redis_with_tls(&authority, &good).await, redis_with_tls(&authority, &expired).await);
    let trusting = |address: &str| format!("{}?sslrootcert={}", address.replace("//", "//:Hunter2@"), authority.path());
    for (address, reason, mend) in [
        (good.replace("//", "//:Hunter2@"), "UnknownIssuer", "name the file of the one that did in sslrootcert"),
        (trusting(&good.replace("localhost", "127.0.0.1")), "not valid for name \"127.0.0.1\"", "connect by a name"),
        (trusting(&expired), "certificate expired", "renew the certificate of the server"),
    ] {
        let doctor = world.command_with("test-workers", &["doctor"], &[("MONALISA_VALKEY_URL", &address)]);
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        let line = said.lines().find(|line| line.starts_with("warning  valkey")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(reason) && line.contains(mend) && !said.contains("Hunter2"), "{line}");
    }
    let workers = world.start(&[RELAY, ("MONALISA_VALKEY_URL", &trusting(&expired)), ("RUST_LOG", "debug")]).await;
    let line = workers.log("failed; trying again after a pause").await;
    assert!(line["part"] == "wake" && line["error"].as_str().unwrap().contains("certificate expired"), "{line}");
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    assert!(!workers.lines().join("\n").contains("Hunter2"));
}
