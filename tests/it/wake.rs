//! Valkey is only an accelerator: it wakes the relay in milliseconds, and nothing fails or grows without it.

use std::time::{Duration, Instant};

use monalisa::{Client, Options, Task, WAKE_KEY, dispatch};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{
    World, connect,
    redis_server::{RedisServer, info},
    stretched, wait_for,
};

#[derive(Serialize, Deserialize)]
struct Plain {}

impl Task for Plain {
    const NAME: &'static str = "t.ok";
}

/// Dispatches and commits with a wake; how long the commit and the wake took.
async fn committed(world: &World, valkey: &str) -> Duration {
    let mut api = connect(&world.url(Some("test_api"))).await;
    let client = Client::new(Some(valkey)).unwrap();
    let transaction = api.transaction().await.unwrap();
    dispatch(&transaction, &Plain {}, &Options::tenant(1)).await.unwrap();
    let began = Instant::now();
    client.commit(transaction).await.unwrap();
    began.elapsed()
}

#[tokio::test]
async fn a_valkey_that_is_dead_refuses_or_hangs_never_fails_an_enqueue() {
    let world = World::without_queues().await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (hangs, refuses) = (hanging.local_addr().unwrap(), refusing.local_addr().unwrap());
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((stream, _)) = hanging.accept().await {
            silent.push(stream);
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = refusing.accept().await {
            tokio::spawn(async move {
                let mut asked = [0; 1_024];
                while stream.read(&mut asked).await.is_ok_and(|bytes| bytes > 0) {
                    let _ = stream.write_all(&b"-LOADING it is loading\r\n".repeat(8)).await;
                }
            });
        }
    });
    for (number, address) in [dead, hangs, refuses].into_iter().enumerate() {
        let took = committed(&world, &format!("redis://{address}/")).await;
        assert!(took < Duration::from_millis(1_500), "{address} took {took:?}");
        assert_eq!(world.count("select count(*) from work.outbox_messages").await, number as i64 + 1);
    }
}

#[tokio::test]
async fn wakes_that_nobody_takes_leave_a_short_list() {
    let world = World::without_queues().await;
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]).await;
    let client = Client::new(Some(&redis.url())).unwrap();
    for _ in 0..2_000 {
        client.wake().await;
    }
    let mut connection = redis.connect().await;
    let length: u64 = redis::cmd("LLEN").arg(WAKE_KEY).query_async(&mut connection).await.unwrap();
    assert!((1..1_000).contains(&length), "{length} wakes are kept");
    assert_eq!(info(&mut connection, "cmdstat_lpush").await, 2_000, "each was pushed");
    let full: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").query_async(&mut connection).await.unwrap();
    let refused = redis::cmd("LPUSH").arg("x").arg(1).exec_async(&mut connection).await;
    assert!(refused.is_err_and(|error| error.code() == Some("OOM")), "{full:?}");
    assert!(committed(&world, &redis.url()).await < Duration::from_millis(1_500));
}

#[tokio::test]
async fn a_backlog_of_wakes_is_thrown_away_and_not_worked_off() {
    let world = World::new().await;
    world.db.batch_execute("create extension pg_stat_statements").await.unwrap();
    let redis = RedisServer::start(&[]).await;
    let mut connection = redis.connect().await;
    // An API in another language pushes without a trim.
    let mut push = redis::cmd("LPUSH");
    push.arg(WAKE_KEY).arg(vec![1; 5_000]);
    let _: u64 = push.query_async(&mut connection).await.unwrap();
    let _workers =
        world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VALKEY_URL", &redis.url()), ("MONALISA_RELAY_SWEEP_MS", "60000")]).await;
    wait_for("the list to be empty and the relay to listen again", async || {
        let there: bool = redis::cmd("EXISTS").arg(WAKE_KEY).query_async(&mut connection).await.unwrap();
        (!there && info(&mut connection, "blocked_clients").await == 1).then_some(())
    })
    .await;
    let run = world.dispatch("t.ok", "{}").await;
    redis::cmd("LPUSH").arg(WAKE_KEY).arg(1).exec_async(&mut connection).await.unwrap();
    world.run_is(run, "succeeded").await;
    let claims = "select coalesce(sum(calls), 0)::int8 from pg_stat_statements
                   where query ~ 'outbox/(due|claim):' and dbid = (select oid from pg_database where datname = current_database())";
    let claims = world.count(claims).await;
    assert!((4..100).contains(&claims), "{claims} statements on the outbox");
}

#[tokio::test]
async fn an_idle_relay_asks_every_five_seconds_and_never_reconnects_and_a_wake_is_answered_at_once() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let mut connection = redis.connect().await;
    let workers =
        world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VALKEY_URL", &redis.url()), ("MONALISA_RELAY_SWEEP_MS", "60000")]).await;
    wait_for("the relay to listen", async || (info(&mut connection, "blocked_clients").await == 1).then_some(())).await;
    wait_for("its look at the key", async || (info(&mut connection, "cmdstat_type").await > 0).then_some(())).await;
    let (began, connections) = (Instant::now(), info(&mut connection, "total_connections_received").await);
    // Versions differ in whether a pop is counted when it begins or when it ends.
    let pops = info(&mut connection, "cmdstat_blpop").await + 2;
    wait_for("two pops that end with nothing", async || (info(&mut connection, "cmdstat_blpop").await >= pops).then_some(())).await;
    let took = began.elapsed().as_secs_f64();
    assert!((9.0..13.0).contains(&took), "two pops took {took} s");
    assert_eq!(info(&mut connection, "total_connections_received").await, connections, "it connected anew");

    // The product's own push is not held up by the pop that waits.
    let client = Client::new(Some(&redis.url())).unwrap();
    client.wake().await;
    wait_for("the relay to listen again", async || (info(&mut connection, "blocked_clients").await == 1).then_some(())).await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let run = world.dispatch("t.ok", "{}").await;
        let began = Instant::now();
        client.wake().await;
        assert!(began.elapsed() < Duration::from_millis(250), "a push took {:?}", began.elapsed());
        world.run_is(run, "succeeded").await;
        let sql = "select extract(epoch from sent_at - created_at)::float8 from work.outbox_messages where run_id = $1";
        waits.push(world.one(sql, &[&run]).await.get::<_, f64>(0));
    }
    waits.sort_by(f64::total_cmp);
    assert!(waits[2] < 0.3, "from the row to its send in seconds: {waits:?}");
    let noise: Vec<String> =
        workers.lines().into_iter().filter(|line| line.contains("\"ERROR\"") || line.contains("part\":\"wake")).collect();
    assert!(noise.is_empty(), "{noise:#?}");
}

#[tokio::test]
async fn what_a_run_schedules_is_carried_at_once_whether_the_relay_is_in_its_process_or_another() {
    let world = World::new().await;
    let redis = RedisServer::start(&[]).await;
    let url = redis.url();
    let alone = [("MONALISA_VALKEY_URL", url.as_str()), ("MONALISA_RELAY_SWEEP_MS", "60000")];
    let with_relay = [alone.as_slice(), &[("MONALISA_RELAY", "true")]].concat();
    let client = Client::new(Some(&url)).unwrap();
    let parent_runs = async || {
        let run = world.dispatch("s.parent", r#"{"ms":300}"#).await;
        client.wake().await;
        world.run_is(run, "succeeded").await;
        world.count_is("select count(*) from work.task_runs where unit = 's.child' and status <> 'succeeded'", 0).await;
    };
    let waited = "select max(extract(epoch from o.sent_at - p.finished_at))::float8
                    from work.task_runs p
                    join work.task_runs c on c.payload ->> 'parent' = p.run_id::text
                    join work.platform_outbox_messages o on o.run_id = c.run_id";
    let together = world.start(&with_relay).await;
    parent_runs().await;
    drop(together);
    let _relay = world.start(&[with_relay.as_slice(), &[("QUEUES", "bulk")]].concat()).await;
    let _worker = world.start(&alone).await;
    parent_runs().await;
    assert_eq!(world.count("select count(*) from work.task_runs where unit = 's.child' and status = 'succeeded'").await, 2);
    let waited: f64 = world.one(waited, &[]).await.get(0);
    assert!(waited < stretched(Duration::from_secs(2)).as_secs_f64(), "{waited} s from the commit to the send");
}
