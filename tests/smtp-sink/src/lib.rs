//! A mail server for development: it accepts every mail from anyone and stores it as a file that a person can open.
//!
//! The protocol is the `mailin` crate's; there is no TLS, no authentication and no delivery. [`Sink`] runs it in a
//! process of one's own.

mod mailbox;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mailin::{Action, Handler, Response, Session, SessionBuilder, response};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::{JoinHandle, JoinSet};

use crate::mailbox::Mailbox;

/// The largest line that is read; a longer one ends the connection.
const MAX_LINE: u64 = 1 << 20;

/// A running mail server; it stops when dropped.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Sink {
    /// Starts a server that stores mails in `directory`, which is made where missing; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be bound or the directory cannot be made.
    pub async fn start(address: impl ToSocketAddrs, directory: impl AsRef<Path>) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::open(directory.as_ref())?);
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, task: tokio::spawn(accept(listener, mailbox)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves connections until aborted; they end with it.
async fn accept(listener: TcpListener, mailbox: Arc<Mailbox>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let letter = Letter { mailbox: Arc::clone(&mailbox), text: Vec::new() };
                    let session = SessionBuilder::new("smtp-sink").build(peer.ip(), letter);
                    connections.spawn(converse(stream, session));
                }
                // Out of file handles, most likely: let some connections end.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries lines to the session and its answers back. Answers wait while more lines are at hand, so that a client
/// which pipelines is answered in one packet.
async fn converse(mut stream: TcpStream, mut session: Session<Letter>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reading, mut writing) = stream.split();
    let mut reading = BufReader::with_capacity(64 * 1024, reading);
    writing.write_all(&session.greeting().buffer()?).await?;
    let (mut line, mut answers) = (Vec::new(), Vec::new());
    loop {
        if read_line(&mut reading, &mut line).await? == 0 {
            return Ok(());
        }
        let response = session.process(&line);
        response.write_to(&mut answers)?;
        if !answers.is_empty() && !reading.buffer().contains(&b'\n') {
            writing.write_all(&answers).await?;
            answers.clear();
        }
        if response.action == Action::Close {
            writing.write_all(&answers).await?;
            return Ok(());
        }
    }
}

/// Reads a line, its end included; 0 bytes when the client is gone.
async fn read_line(reading: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    reading.take(MAX_LINE).read_until(b'\n', line).await?;
    match line.len() as u64 {
        MAX_LINE => Err(io::Error::other("the line is too long")),
        length => Ok(length),
    }
}

/// The mail that a connection is sending.
struct Letter {
    mailbox: Arc<Mailbox>,
    text: Vec<u8>,
}

impl Handler for Letter {
    fn data_start(&mut self, _domain: &str, from: &str, _is8bit: bool, to: &[String]) -> Response {
        self.text = format!("Return-Path: <{from}>\r\n").into_bytes();
        for recipient in to {
            self.text.extend(format!("Delivered-To: {recipient}\r\n").into_bytes());
        }
        response::OK
    }

    fn data(&mut self, line: &[u8]) -> io::Result<()> {
        self.text.extend_from_slice(line);
        Ok(())
    }

    fn data_end(&mut self) -> Response {
        match self.mailbox.store(&std::mem::take(&mut self.text)) {
            Ok(()) => response::OK,
            Err(error) => {
                eprintln!("smtp-sink: a mail could not be stored: {error}");
                response::INTERNAL_ERROR
            }
        }
    }
}
