//! The Rust code of `docs/for-handler-authors.md`, word for word: `docs.rs` compares it, the compiler and the tests below check it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use monalisa::{Event, Options, TaskError, TaskRun, subscriber, task, testing::TestDatabase};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
struct ImportOrders {
    file: String,
}

task! {
    payload: ImportOrders,
    handler: import_orders,
    name: "orders.import",
    queue: "bulk",
    timeout_seconds: 900,
    concurrency: 2,
}

async fn import_orders(payload: ImportOrders, run: &TaskRun) -> Result<u64, TaskError> {
    let effect = run.transaction().await?;
    let lines = read(&payload.file)?;
    for (done, line) in lines.iter().enumerate() {
        effect.execute("insert into orders (line) values ($1)", &[line]).await?;
        run.progress((done * 100 / lines.len()) as u8).await;
    }
    let options = Options { delay: Some(Duration::from_secs(3_600)), ..Options::default() };
    monalisa::dispatch(&**effect, &CheckOrders { file: payload.file }, &options).await?;
    Ok(effect.query_one("select count(*) from orders", &[]).await?.get::<_, i64>(0) as u64)
}

fn read(file: &str) -> std::io::Result<Vec<String>> {
    Ok(file.split(' ').map(str::to_owned).collect())
}

#[derive(Serialize, Deserialize)]
struct CheckOrders {
    file: String,
}

task! { payload: CheckOrders, handler: check_orders, name: "orders.check", queue: "bulk" }

async fn check_orders(_: CheckOrders, _: &TaskRun) -> Result<(), TaskError> {
    Ok(())
}

#[tokio::test]
async fn an_import_writes_its_orders_and_schedules_their_check() {
    let db = TestDatabase::new("create table orders (line text not null)").await.unwrap();
    let tried = db.task(&ImportOrders { file: "two lines".to_owned() }).tenant(3).attempt(2).run().await.unwrap();
    assert_eq!(tried.outcome(), Some(&json!(2)));
    let orders: i64 = tried.query_one("select count(*) from orders", &[]).await.unwrap().get(0);
    assert_eq!(orders, 2);

    let scheduled = tried.scheduled().await.unwrap();
    assert_eq!((scheduled[0].unit.as_str(), scheduled[0].tenant_id), ("orders.check", Some(3)));
    assert_eq!(scheduled[0].payload, json!({"file": "two lines"}));
}

#[derive(Serialize, Deserialize)]
struct ChargeCard {
    cents: i64,
}

task! { payload: ChargeCard, handler: charge_card, name: "cards.charge", queue: "critical" }

async fn charge_card(payload: ChargeCard, run: &TaskRun) -> Result<(), TaskError> {
    let payments = run.state::<Payments>()?;
    let receipt = payments.charge(/* idempotency key */ run.run_id(), payload.cents).await?;
    let effect = run.transaction().await?;
    effect.execute("insert into charges (run_id, receipt) values ($1, $2)", &[&run.run_id(), &receipt]).await?;
    Ok(())
}

/// A client of a payment provider.
struct Payments {
    address: std::net::SocketAddr,
}

impl Payments {
    async fn charge(&self, key: Uuid, cents: i64) -> std::io::Result<String> {
        let mut connection = TcpStream::connect(self.address).await?;
        let request = format!("POST /charges/{cents} HTTP/1.0\r\nIdempotency-Key: {key}\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        answer.split("\r\n\r\n").nth(1).map(str::to_owned).ok_or_else(|| std::io::Error::other(answer.clone()))
    }
}

/// A payment provider: a key that it has seen is answered as the first time, and charges nothing.
struct Provider {
    address: std::net::SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    requests: usize,
    keys: HashSet<String>,
}

impl Provider {
    async fn start() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Provider { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = provider.seen.clone();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(connection.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                let key = request.split("Idempotency-Key: ").nth(1).unwrap().trim().to_owned();
                let answer = format!("HTTP/1.0 200 OK\r\n\r\nreceipt of {key}");
                {
                    let mut seen = seen.lock().unwrap();
                    seen.requests += 1;
                    seen.keys.insert(key);
                }
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        provider
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().requests
    }

    fn charges(&self) -> usize {
        self.seen.lock().unwrap().keys.len()
    }
}

#[tokio::test]
async fn a_card_is_charged_once_though_the_first_attempt_fails_after_the_charge() {
    let provider = Provider::start().await;
    let setup = "create table charges (run_id uuid primary key, receipt text not null, constraint full_up check (receipt = ''))";
    let db = TestDatabase::new(setup).await.unwrap().state(Payments { address: provider.address });
    db.execute(r#"select work.dispatch('cards.charge', '{"cents": 950}', tenant_id => 1)"#, &[]).await.unwrap();

    let ran = db.run_due().await.unwrap();
    assert_eq!((ran[0].attempt, ran[0].status.as_str()), (1, "retrying"));
    assert_eq!(db.run_due().await.unwrap(), [], "the next attempt has its time");

    db.execute("alter table charges drop constraint full_up", &[]).await.unwrap();
    db.forward(Duration::from_secs(60)).await.unwrap();
    let ran = db.run_due().await.unwrap();
    assert_eq!((ran[0].attempt, ran[0].status.as_str()), (2, "succeeded"));
    assert_eq!((provider.requests(), provider.charges()), (2, 1), "the second request had the key of the first");
}

#[derive(Serialize, Deserialize)]
struct RemindCustomer {
    order_id: i64,
}

task! { payload: RemindCustomer, handler: remind_customer, name: "p.remind_customer", queue: "default" }

async fn remind_customer(_: RemindCustomer, _: &TaskRun) -> Result<(), TaskError> {
    Ok(())
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Remind(RemindCustomer);

task! { payload: Remind, handler: remind, name: "p.remind", queue: "default" }

async fn remind(reminder: Remind, run: &TaskRun) -> Result<(), TaskError> {
    remind_customer(reminder.0, run).await
}

#[derive(Serialize, Deserialize)]
struct OrderPaid {
    order_id: i64,
}

impl Event for OrderPaid {
    const TYPE: &'static str = "orders.paid";
}

subscriber! {
    event: OrderPaid,
    handler: thank_customer,
    name: "orders.thank_customer",
    queue: "default",
}

async fn thank_customer(_: OrderPaid, _: &TaskRun) -> Result<(), TaskError> {
    Ok(())
}
