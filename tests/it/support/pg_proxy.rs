//! A TCP proxy in front of one server of a test, above all PostgreSQL: it cuts, refuses, freezes, and loses or holds an answer.

use std::{
    collections::HashSet,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::{Mutex, watch},
    task::{JoinHandle, JoinSet},
};

use super::{engine, redis_server::free_port, wait_for};

/// What to do with the next statement of this text, or that contains it.
#[derive(Debug, Clone)]
struct Rule {
    text: String,
    whole: bool,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    LoseAnswer,
    HoldAnswer,
    DeliverLate,
}

#[derive(Debug, Default)]
struct State {
    refusing: bool,
    listening: bool,
    frozen: bool,
    holding: bool,
    cuts: u64,
    /// Open connections, each with how many cuts there were before it.
    open: Vec<u64>,
    rule: Option<Rule>,
    connections: u64,
    swallowed: u64,
    held: u64,
    stuck: u64,
}

/// A proxy with a port of its own; it ends when dropped.
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server at the address of this URL.
    pub async fn to(url: &str) -> Proxy {
        let url = url::Url::parse(url).expect("a URL");
        let target = (url.host_str().expect("a host"), url.port().expect("a port"));
        let target = target.to_socket_addrs().expect("an address").next().expect("an address");
        let (state, port) = (watch::Sender::new(State::default()), free_port());
        let task = engine().spawn(run(port, target, state.clone()));
        let proxy = Proxy { port, state, task };
        proxy.accept().await;
        proxy
    }

    /// This URL, by way of the proxy.
    pub fn through(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_host(Some("127.0.0.1")).expect("a host");
        url.set_port(Some(self.port)).expect("a port");
        if url.scheme().starts_with("postgres") {
            // What is encrypted cannot be watched.
            url.set_query(Some("sslmode=disable"));
        }
        url.into()
    }

    /// Closes all connections; what is sent from now on reaches nobody.
    pub async fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
        let is_cut = |state: &State| state.open.iter().all(|cuts| *cuts >= state.cuts);
        wait_for("the connections to be closed", async || is_cut(&self.state.borrow()).then_some(())).await;
    }

    /// From now on nobody listens: new connections are refused.
    pub async fn refuse(&self) {
        self.state.send_modify(|state| state.refusing = true);
        wait_for("the port to be closed", async || (!self.state.borrow().listening).then_some(())).await;
    }

    /// Listens again.
    pub async fn accept(&self) {
        self.state.send_modify(|state| state.refusing = false);
        wait_for("the port to be open", async || self.state.borrow().listening.then_some(())).await;
    }

    /// No byte passes any more, and nothing is closed; new connections are taken and hear nothing.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.frozen = true);
    }

    pub fn thaw(&self) {
        self.state.send_modify(|state| state.frozen = false);
    }

    /// The next statement that contains this text is carried out; its answer is lost, and the connection with it.
    pub fn swallow_answer_to(&self, text: &str) {
        self.rule(text, false, What::LoseAnswer);
    }

    /// The same of the next statement that is just this text.
    pub fn swallow_answer_to_just(&self, text: &str) {
        self.rule(text, true, What::LoseAnswer);
    }

    /// The next statement that contains this text is carried out; its answer waits for `release`.
    pub fn hold_answer_to(&self, text: &str) {
        self.rule(text, false, What::HoldAnswer);
    }

    /// The same of the next statement that is just this text.
    pub fn hold_answer_to_just(&self, text: &str) {
        self.rule(text, true, What::HoldAnswer);
    }

    /// The connection of the next statement that contains this text is closed; the server gets the statement at `release`.
    pub fn deliver_late(&self, text: &str) {
        self.rule(text, false, What::DeliverLate);
    }

    fn rule(&self, text: &str, whole: bool, what: What) {
        self.state.send_modify(|state| {
            state.rule = Some(Rule { text: text.to_owned(), whole, what });
            state.holding = what != What::LoseAnswer;
        });
    }

    pub fn release(&self) {
        self.state.send_modify(|state| state.holding = false);
    }

    /// Connections that were taken so far.
    pub fn connections(&self) -> u64 {
        self.state.borrow().connections
    }

    /// Answers that were lost so far.
    pub fn swallowed(&self) -> u64 {
        self.state.borrow().swallowed
    }

    /// Answers that were held so far (the statements of these are carried out), and statements that were kept back.
    pub fn held(&self) -> u64 {
        self.state.borrow().held
    }

    /// How often something was sent, either way, while it was frozen.
    pub fn stuck(&self) -> u64 {
        self.state.borrow().stuck
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(port: u16, target: SocketAddr, state: watch::Sender<State>) {
    let mut changes = state.subscribe();
    let mut connections = JoinSet::new();
    loop {
        if changes.wait_for(|state| !state.refusing).await.is_err() {
            return;
        }
        // The port of a listener that has just gone may take a moment to be free.
        let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await else {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        };
        state.send_modify(|state| state.listening = true);
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((client, _)) = accepted {
                    let mut cuts = 0;
                    state.send_modify(|state| {
                        cuts = state.cuts;
                        state.connections += 1;
                        state.open.push(cuts);
                    });
                    let state = state.clone();
                    connections.spawn(async move {
                        connection(client, target, &state, cuts).await;
                        state.send_modify(|state| {
                            if let Some(at) = state.open.iter().position(|open| *open == cuts) {
                                state.open.remove(at);
                            }
                        });
                    });
                },
                _ = changes.wait_for(|state| state.refusing) => break,
                Some(_) = connections.join_next() => {}
            }
        }
        drop(listener);
        state.send_modify(|state| state.listening = false);
    }
}

/// Carries one connection until an end closes it, or it is cut.
async fn connection(client: TcpStream, target: SocketAddr, state: &watch::Sender<State>, cuts: u64) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let mut cut = state.subscribe();
    let armed = Arc::new(Mutex::new(None));
    let late = tokio::select! {
        late = asks(from_client, to_server, state, &armed) => late,
        () = answers(&mut from_server, to_client, state, &armed) => None,
        _ = cut.wait_for(|state| state.cuts > cuts) => None,
    };
    if let Some((mut to_server, bytes)) = late {
        state.send_modify(|state| state.held += 1);
        let _ = state.subscribe().wait_for(|state| !state.holding).await;
        if to_server.write_all(&bytes).await.is_ok() {
            let _ = from_server.read(&mut [0; 1024]).await;
        }
    }
}

async fn thawed(state: &watch::Sender<State>) {
    if state.borrow().frozen {
        state.send_modify(|state| state.stuck += 1);
    }
    let _ = state.subscribe().wait_for(|state| !state.frozen).await;
}

/// Ends with what is to be delivered late, where there is such a thing.
async fn asks(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &watch::Sender<State>,
    armed: &Mutex<Option<Rule>>,
) -> Option<(OwnedWriteHalf, Vec<u8>)> {
    let mut watcher = Watcher::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return None };
        thawed(state).await;
        let rule = state.borrow().rule.clone();
        let seen = watcher.sees(&buffer[..count], rule.as_ref());
        if seen && rule.is_some_and(|rule| rule.what == What::DeliverLate) {
            state.send_modify(|state| state.rule = None);
            return Some((to, buffer[..count].to_vec()));
        }
        // What comes back waits until both are done, however soon it is there.
        let arming = if seen { Some(armed.lock().await) } else { None };
        if to.write_all(&buffer[..count]).await.is_err() {
            return None;
        }
        if let Some(mut armed) = arming {
            state.send_modify(|state| *armed = state.rule.take());
        }
    }
}

async fn answers(from: &mut OwnedReadHalf, mut to: OwnedWriteHalf, state: &watch::Sender<State>, armed: &Mutex<Option<Rule>>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        thawed(state).await;
        let rule = armed.lock().await.take();
        match rule.map(|rule| rule.what) {
            Some(What::LoseAnswer) => {
                state.send_modify(|state| state.swallowed += 1);
                return;
            }
            Some(What::HoldAnswer) => {
                state.send_modify(|state| state.held += 1);
                let _ = state.subscribe().wait_for(|state| !state.holding).await;
            }
            _ => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Reads along in what a PostgreSQL client sends: which statement is carried out, as text or by the name it was prepared under.
#[derive(Default)]
struct Watcher {
    pending: Vec<u8>,
    started: bool,
    /// Names of prepared statements, with their texts.
    prepared: std::collections::HashMap<Vec<u8>, Vec<u8>>,
}

impl Watcher {
    /// Whether these bytes end a message that carries out a statement of this rule.
    fn sees(&mut self, bytes: &[u8], rule: Option<&Rule>) -> bool {
        self.pending.extend_from_slice(bytes);
        let mut seen = HashSet::new();
        loop {
            // The first messages of a session have no type.
            let head = usize::from(self.started);
            let Some(length) = self.pending.get(head..head + 4) else { break };
            let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if self.pending.len() < head + length {
                break;
            }
            let message: Vec<u8> = self.pending.drain(..head + length).collect();
            if !self.started {
                // Protocol 3; a wish for TLS, or to cancel, has another number here.
                self.started = message[4..6] == [0, 3];
                continue;
            }
            let mut parts = message[5..].split(|byte| *byte == 0);
            let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let carried_out = match message[0] {
                b'Q' => Some(first.to_vec()),
                b'P' => {
                    self.prepared.insert(first.to_vec(), second.to_vec());
                    None
                }
                b'B' => self.prepared.get(second).cloned(),
                _ => None,
            };
            seen.extend(carried_out);
        }
        let fits = |rule: &Rule, text: &str| if rule.whole { text == rule.text } else { text.contains(&rule.text) };
        rule.is_some_and(|rule| seen.iter().any(|statement| fits(rule, &String::from_utf8_lossy(statement))))
    }
}
