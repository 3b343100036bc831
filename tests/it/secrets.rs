//! Passwords of every character arrive, and nothing secret is printed, whatever happens and however much is logged.

use monalisa::database::Database;

use crate::support::{
    Process, RELAY, World, binary, certificates::Authority, connect, encoded, pg_server::PgServer, redis_server::RedisServer, wait_for,
};

/// The tests look in as superuser; others need their passwords.
const ACCESS: &[&str] = &["host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256"];

/// With every printable character of ASCII, and some beyond.
fn odd_password() -> String {
    (' '..='~').chain("żółć ü 漢字 😀".chars()).collect()
}

#[tokio::test]
async fn a_password_of_every_character_is_taken_with_scram_encrypted_or_not() {
    let authority = Authority::new("Ours");
    let server = PgServer::start_with_tls(&authority.certificate("localhost"), ACCESS, &["password_encryption=scram-sha-256"]);
    let world = World::with_server(&server).await;
    let password = odd_password();
    let make = format!("create role odd login password '{}'; grant test_worker to odd", password.replace('\'', "''"));
    world.db.batch_execute(&make).await.unwrap();
    let address = world.url(None).replace("127.0.0.1", "localhost").replace("postgres@", &format!("odd:{}@", encoded(&password)));
    for mode in ["sslmode=disable".to_owned(), format!("sslmode=verify-full&sslrootcert={}", authority.path())] {
        let client = Database::parse(&format!("{address}?{mode}")).unwrap().connect("test").await.unwrap();
        assert_eq!(client.query_one("select session_user::text", &[]).await.unwrap().get::<_, &str>(0), "odd");
    }
    let workers = world.start(&[RELAY, ("DATABASE_URL", &address)]).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    drop(workers);
}

/// Starts test-workers with its standard output in its log too.
fn spawn_with_all_output(world: &World, changes: &[(&str, &str)]) -> Process {
    let mut environment = world.environment();
    environment.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let program = binary("test-workers").display().to_string();
    Process::spawn("/bin/sh".as_ref(), &["-c", "exec \"$0\" 1>&2", &program], environment)
}

/// How a secret may look where somebody prints it.
fn disguises(secret: &str) -> [String; 2] {
    [secret.to_owned(), format!("{:?}", secret.as_bytes()).trim_matches(['[', ']']).to_owned()]
}

#[tokio::test]
async fn nothing_secret_is_printed_at_any_level_whatever_happens() {
    let authority = Authority::new("Ours");
    let server = PgServer::start_with_tls(&authority.certificate("localhost"), ACCESS, &["password_encryption=scram-sha-256"]);
    let world = World::with_server(&server).await;
    world.db.batch_execute("alter role test_worker password 'PgSecret-1'").await.unwrap();
    let redis = RedisServer::start(&["--requirepass", "ValkeySecret-2"]).await;
    let database = world.url(Some("test_worker")).replace("test_worker@", "test_worker:PgSecret-1@").replace("127.0.0.1", "localhost");
    let database = format!("{database}?sslmode=verify-full&sslrootcert={}", authority.path());
    let valkey = redis.url().replace("//", "//:ValkeySecret-2@");
    let environment = [
        RELAY,
        ("DATABASE_URL", database.as_str()),
        ("MONALISA_VALKEY_URL", valkey.as_str()),
        ("MONALISA_SMTP_URL", "smtp://somebody:MailSecret-3@127.0.0.1:1"),
        ("MONALISA_SMTP_FROM", "from@a.test"),
        ("MONALISA_SQS_LOCAL_CREDENTIALS", "false"),
        ("AWS_ACCESS_KEY_ID", "AKIASECRET4"),
        ("AWS_SECRET_ACCESS_KEY", "AwsSecret-5"),
        ("AWS_SESSION_TOKEN", "AwsToken-6"),
        ("RUST_LOG", "trace"),
        ("MONALISA_STOP_TIMEOUT_MS", "7000"),
    ];
    let secrets = ["PgSecret-1", "ValkeySecret-2", "MailSecret-3", "AKIASECRET4", "AwsSecret-5", "AwsToken-6", "PayloadSecret-7"];
    let mut workers = spawn_with_all_output(&world, &environment);
    workers.log("ready").await;

    let well = world.dispatch("t.ok", r#"{"note":"PayloadSecret-7"}"#).await;
    world.run_is(well, "succeeded").await;
    let badly = world.dispatch("t.sleep", r#"{"s":"PayloadSecret-7"}"#).await;
    world.run_is(badly, "failed").await;
    let mail = "select run_id from work.publish('identity.session_started',
                    '{\"email\": \"PayloadSecret-7@b.test\", \"name\": \"PayloadSecret-7\", \"occurred_at\": \"2026-01-02T03:04:05Z\"}', tenant_id => 1)";
    let mail = world.one(mail, &[]).await.get(0);
    world.run_is(mail, "retrying").await;
    let told = async |workers: &Process, words: &str| {
        wait_for(words, async || workers.lines().iter().any(|line| line.contains(words)).then_some(())).await;
    };
    server.crash();
    told(&workers, "Connection refused").await;
    server.go();
    let change =
        "alter role test_worker password 'another'; select pg_terminate_backend(pid) from pg_stat_activity where usename = 'test_worker'";
    connect(&world.url(None)).await.batch_execute(change).await.unwrap();
    told(&workers, "28P01").await;
    workers.stop().await;
    let mut refused = spawn_with_all_output(&world, &environment);
    assert_eq!(refused.exit().await.code(), Some(1));

    let lines = [workers.all_lines().await, refused.all_lines().await].concat();
    for talkative in ["\"target\":\"monalisa::", "\"level\":\"TRACE\"", "\"target\":\"hyper_util::"] {
        assert!(lines.iter().any(|line| line.contains(talkative)), "nothing of {talkative}");
    }
    for secret in secrets {
        for look in disguises(secret) {
            let told: Vec<&String> = lines.iter().filter(|line| line.contains(&look)).take(3).collect();
            assert!(told.is_empty(), "{secret} is printed: {told:#?}");
        }
    }
}
