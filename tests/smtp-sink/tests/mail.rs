//! The sink as a mail client meets it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use smtp_sink::Sink;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A client that talks SMTP by hand.
struct Client {
    reading: BufReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
}

impl Client {
    async fn connect(sink: &Sink) -> Self {
        let (reading, writing) = TcpStream::connect(sink.address()).await.unwrap().into_split();
        let mut client = Self { reading: BufReader::new(reading), writing };
        client.expect("220").await;
        client.say("EHLO test\r\n", "250").await;
        client
    }

    async fn expect(&mut self, code: &str) {
        loop {
            let mut line = String::new();
            self.reading.read_line(&mut line).await.unwrap();
            assert!(line.starts_with(code), "{line:?} instead of {code}");
            if line.as_bytes().get(3) == Some(&b' ') {
                return;
            }
        }
    }

    async fn say(&mut self, text: &str, code: &str) {
        self.writing.write_all(text.as_bytes()).await.unwrap();
        self.expect(code).await;
    }

    async fn mail(&mut self, mail: &str) {
        self.say("MAIL FROM:<from@example.com>\r\n", "250").await;
        self.say("RCPT TO:<to@example.com>\r\n", "250").await;
        self.say("DATA\r\n", "354").await;
        self.say(&format!("{mail}\r\n.\r\n"), "250").await;
    }
}

/// An empty folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smtp-sink-{}-{name}", std::process::id()));
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[tokio::test]
async fn a_mail_becomes_a_file_named_by_its_subject() {
    let folder = Folder::new("subject");
    let sink = Sink::start("127.0.0.1:0", &folder.0).await.unwrap();
    let mut client = Client::connect(&sink).await;
    client.mail("Subject: New sign-in\r\nMessage-ID: <1@example.com>\r\n\r\nHello\r\n..dots\r\n").await;
    client.mail("Message-ID: <2@example.com>\r\n\r\nWithout a subject").await;
    client.say("QUIT\r\n", "221").await;

    let files = folder.files();
    assert_eq!(files.iter().map(|path| name(path)).collect::<Vec<_>>(), ["1-New-sign-in.eml", "2-2-example.com.eml"]);
    let stored = std::fs::read_to_string(&files[0]).unwrap();
    assert!(stored.contains("Delivered-To: to@example.com\r\n"), "{stored}");
    assert!(stored.ends_with("\r\n\r\nHello\r\n.dots\r\n\r\n"), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_at_once_lose_no_mail() {
    let folder = Folder::new("many");
    let sink = Sink::start("127.0.0.1:0", &folder.0).await.unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..50 {
        let mut client = Client::connect(&sink).await;
        clients.spawn(async move {
            for _ in 0..20 {
                client.mail(&format!("Subject: {number}\r\n\r\nbody")).await;
            }
        });
    }
    clients.join_all().await;
    assert_eq!(folder.files().len(), 1000);
}
