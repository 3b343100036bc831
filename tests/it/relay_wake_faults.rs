//! The wake under faults of Valkey. The sweep is a minute away, so that it hides nothing.

use std::time::{Duration, Instant};

use monalisa::{Client, WAKE_KEY};
use redis::aio::MultiplexedConnection;

use crate::support::{
    Process, Proxy, RELAY_ALONE, SOON, World, in_time, redis_server::RedisServer, redis_server::info, stretched, wait_for,
};

/// What a wake takes at most; without one the relay looks again after five seconds.
const WOKEN: Duration = Duration::from_secs(3);

/// A relay that hears nothing but wakes.
async fn relay(world: &World, valkey: &str) -> Process {
    world.start(&[RELAY_ALONE, &[("MONALISA_VALKEY_URL", valkey), ("MONALISA_RELAY_SWEEP_MS", "60000")]].concat()).await
}

async fn listening(connection: &mut MultiplexedConnection) {
    wait_for("the relay to listen", async || (info(connection, "blocked_clients").await == 1).then_some(())).await;
}

/// Rows that are dispatched with a wake.
struct Rows<'a> {
    world: &'a World,
    client: Client,
    sent: i64,
}

impl Rows<'_> {
    fn new<'a>(world: &'a World, valkey: &str) -> Rows<'a> {
        Rows { world, client: Client::new(Some(valkey)).unwrap(), sent: 0 }
    }

    /// Commits and wakes, which takes no longer than a wake may.
    async fn dispatched(&mut self) {
        let began = Instant::now();
        self.world.dispatch("t.ok", "{}").await;
        self.client.wake().await;
        in_time(began, Duration::from_millis(1_500));
        self.sent += 1;
    }

    /// The next one is sent within two seconds of its wake.
    async fn answered(&mut self) {
        self.dispatched().await;
        self.world.sent_within(self.sent, WOKEN).await;
    }
}

#[tokio::test]
async fn a_listener_that_is_killed_or_unblocked_with_an_error_listens_again() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let mut connection = redis.connect().await;
    let relay = relay(&world, &redis.url()).await;
    let mut rows = Rows::new(&world, &redis.url());
    let cost = relay.cost();
    for _ in 0..3 {
        for command in ["KILL ID", "UNBLOCK"] {
            listening(&mut connection).await;
            let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut connection).await.unwrap();
            let blocked = clients.lines().find(|line| line.contains("cmd=blpop")).expect("it listens");
            let id = blocked.split_once("id=").unwrap().1.split(' ').next().unwrap();
            let mut ended = redis::cmd("CLIENT");
            ended.arg(command.split(' ').collect::<Vec<_>>()).arg(id).arg((command == "UNBLOCK").then_some("ERROR"));
            ended.exec_async(&mut connection).await.unwrap();
            rows.answered().await;
        }
    }
    cost.is_small();
}

#[tokio::test]
async fn a_wake_key_of_another_type_is_replaced() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let mut connection = redis.connect().await;
    let relay = relay(&world, &redis.url()).await;
    let mut rows = Rows::new(&world, &redis.url());
    let cost = relay.cost();
    for _ in 0..5 {
        listening(&mut connection).await;
        redis::cmd("SET").arg(WAKE_KEY).arg("x").exec_async(&mut connection).await.unwrap();
        rows.answered().await;
    }
    // The push of a client is refused, unless the relay looked just then.
    let mut waited = Duration::ZERO;
    for _ in 0..3 {
        listening(&mut connection).await;
        redis::cmd("SET").arg(WAKE_KEY).arg("x").exec_async(&mut connection).await.unwrap();
        let began = Instant::now();
        world.dispatch("t.ok", "{}").await;
        rows.sent += 1;
        let _ = redis::cmd("LPUSH").arg(WAKE_KEY).arg(1).exec_async(&mut connection).await;
        world.sent_within(rows.sent, SOON).await;
        waited += began.elapsed();
    }
    assert!(waited < stretched(Duration::from_secs(9)), "a pop that waits sees nothing of it for five seconds: {waited:?}");
    // And one that was there before it listened.
    let mut other = redis::pipe();
    other
        .cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .cmd("DEL")
        .arg(WAKE_KEY)
        .cmd("HSET")
        .arg(WAKE_KEY)
        .arg("a")
        .arg(1);
    other.exec_async(&mut connection).await.unwrap();
    rows.answered().await;
    cost.is_small();
}

#[tokio::test]
async fn a_valkey_that_is_down_for_a_while_is_listened_to_again() {
    let world = World::new().await;
    let mut redis = RedisServer::start(&[]).await;
    let url = redis.url();
    let relay = relay(&world, &url).await;
    let mut rows = Rows::new(&world, &url);
    rows.answered().await;
    let cost = relay.cost();
    let (_, ()) = tokio::join!(redis.restart_after(Duration::from_secs(10)), async {
        // The relay has looked once more after the first row, and rests until its sweep.
        tokio::time::sleep(Duration::from_secs(7)).await;
        rows.dispatched().await;
    });
    cost.is_small();
    // The one whose wake was lost goes out with the connection.
    world.sent_within(rows.sent, WOKEN).await;
    rows.answered().await;
}

#[tokio::test]
async fn a_valkey_that_freezes_for_a_while_is_listened_to_again() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let relay = relay(&world, &redis.url()).await;
    let mut rows = Rows::new(&world, &redis.url());
    rows.answered().await;
    for seconds in [2, 10] {
        let cost = relay.cost();
        redis.signal("STOP");
        rows.dispatched().await;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        cost.is_small();
        redis.signal("CONT");
        world.sent_within(rows.sent, WOKEN).await;
        rows.answered().await;
    }
}

#[tokio::test]
async fn a_connection_to_valkey_that_hears_nothing_is_given_up() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let proxy = Proxy::to(&redis.url()).await;
    let relay = relay(&world, &proxy.through(&redis.url())).await;
    let mut rows = Rows::new(&world, &redis.url());
    rows.answered().await;
    let cost = relay.cost();
    proxy.freeze();
    rows.dispatched().await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    cost.is_small();
    proxy.cut().await;
    proxy.thaw();
    world.sent_within(rows.sent, WOKEN).await;
    rows.answered().await;
}

#[tokio::test]
async fn a_valkey_that_is_full_costs_the_wake_and_not_the_row() {
    let world = World::new().await;
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut connection = redis.connect().await;
    let relay = relay(&world, &redis.url()).await;
    let mut rows = Rows::new(&world, &redis.url());
    listening(&mut connection).await;
    let limit = async |connection: &mut MultiplexedConnection, bytes: u64| {
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec_async(connection).await.unwrap();
    };
    let cost = relay.cost();
    limit(&mut connection, 1).await;
    rows.dispatched().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    cost.is_small();
    limit(&mut connection, 0).await;
    rows.answered().await;
}
