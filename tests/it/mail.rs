//! The mail after a login: sent once, and of an address that the mail server refuses no word remains.

use std::sync::{Arc, Mutex};

use smtp_sink::Sink;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};
use uuid::Uuid;

use crate::support::{Process, RELAY, World, wait_for};

async fn login(world: &World) -> Uuid {
    let event = r#"{"email":"ana@example.org","name":"Ana","occurred_at":"2026-01-02T03:04:05Z"}"#;
    world.one("select run_id from work.publish('identity.session_started', $1::text::jsonb, tenant_id => 1)", &[&event]).await.get(0)
}

async fn mailer(world: &World, port: u16) -> Process {
    let url = format!("smtp://127.0.0.1:{port}");
    let worker = world.spawn("workers", &[RELAY, ("MONALISA_SMTP_URL", &url), ("MONALISA_SMTP_FROM", "no-reply@example.org")]);
    worker.log("ready").await;
    worker
}

#[tokio::test]
async fn a_login_sends_one_mail_whose_id_is_that_of_the_run() {
    let world = World::new().await;
    let folder = std::env::temp_dir().join(format!("monalisa-mail-{}", Uuid::new_v4().simple()));
    let sink = Sink::start("127.0.0.1:0", &folder).await.unwrap();
    let _worker = mailer(&world, sink.address().port()).await;
    let run = login(&world).await;
    world.run_is(run, "succeeded").await;
    let mails: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default()).collect();
    let sent: Vec<&String> = mails.iter().filter(|mail| mail.contains("ana@example.org")).collect();
    assert!(sent.len() == 1 && sent[0].contains(&format!("<{run}@example.org>")), "{mails:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A mail server that answers each recipient with what it is told to.
async fn refusing(reply: &'static str) -> (u16, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, reply) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(reply.to_owned())));
    let replies = reply.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let replies = replies.clone();
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                write.write_all(b"220 here\r\n").await?;
                let (mut lines, mut body) = (BufReader::new(read).lines(), false);
                while let Some(line) = lines.next_line().await? {
                    let reply = match line.get(..4) {
                        _ if body && line != "." => continue,
                        Some("RCPT") => replies.lock().unwrap().clone(),
                        Some("DATA") => "354 go on".to_owned(),
                        _ => "250 fine".to_owned(),
                    };
                    body = line.starts_with("DATA");
                    write.write_all(format!("{reply}\r\n").as_bytes()).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    (port, reply)
}

#[tokio::test]
async fn a_refusal_is_told_by_its_code_and_one_of_our_own_account_is_tried_again() {
    let world = World::new().await;
    let (port, reply) = refusing("550 5.1.1 <ana@example.org>: Recipient address rejected").await;
    let worker = mailer(&world, port).await;
    let refused = login(&world).await;
    world.run_is(refused, "failed").await;
    let said =
        "select last_error || coalesce((select string_agg(e.detail::text, ' ') from work.run_events e where e.run_id = r.run_id), '')
                  from work.task_runs r where run_id = $1";
    let said: String = world.one(said, &[&refused]).await.get(0);
    assert!(said.starts_with("MAIL_REFUSED: ") && said.contains("550"), "{said}");
    world.messages_are("critical-dlq", 1).await;
    let letters = format!("{:?}", world.dead_letters("critical").await);
    for (place, text) in [("the ledger", said), ("the log", worker.lines().join("\n")), ("the dead letter", letters)] {
        assert!(!text.contains("ana@example"), "{place}: {text}");
    }

    "535 5.7.8 the password was changed".clone_into(&mut reply.lock().unwrap());
    let later = login(&world).await;
    world.run_is(later, "retrying").await;
    "250 fine".clone_into(&mut reply.lock().unwrap());
    world.run_is(later, "succeeded").await;
    let failures = wait_for("the run", async || Some(world.counters(later).await.failures)).await;
    assert!((1..5).contains(&failures), "{failures}");
}
