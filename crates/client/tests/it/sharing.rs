//! Connection sharing: the number of connections and their costs.

use std::sync::Arc;

use consort_client::{Client, ClientError, Flags};
use tokio::task::JoinSet;

use crate::servers::{PATIENCE, Running, Sockets, connections_to, eventually};

/// S002-1, S002-9: one connection for 22 and for 1,000 callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_1_all_callers_share_one_connection() {
    let (server, client) = Running::with_cache("sharing", "c").await;
    for callers in [22, 1_000] {
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let cache = client.cache::<u32, u32>("c");
            tasks.spawn(async move {
                for n in 0..20 {
                    cache.put(&caller, &n).await.unwrap();
                    assert_eq!(cache.get(&caller).await.unwrap(), Some(n));
                }
            });
        }
        let mut most = 0;
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
            most = most.max(connections_to(server.at.port()));
        }
        assert_eq!(most, 1);
        // S002-9: three descriptors at the port, counting both ends.
        let sockets = Sockets::of(server.at.port());
        assert_eq!(sockets, Sockets { listening: 1, served: 1, made: 1 });
    }
}

/// S002-8: one client per caller, like a connection pool: 22 callers need 45 descriptors, where a shared
/// client needs 3 (S002-9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_8_a_connection_for_each_of_22_callers_takes_45_descriptors() {
    const CALLERS: usize = 22;
    let (server, maker) = Running::with_cache("pooled", "c").await;
    maker.close().await;
    eventually("its connection is closed", async || connections_to(server.at.port()) == 0).await;
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for caller in 0..CALLERS as u32 {
        let client = server.client().await;
        let cache = client.cache::<u32, u32>("c");
        clients.push(client);
        tasks.spawn(async move {
            for n in 0..20 {
                cache.put(&caller, &n).await.unwrap();
                assert_eq!(cache.get(&caller).await.unwrap(), Some(n));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let sockets = Sockets::of(server.at.port());
    assert_eq!(sockets, Sockets { listening: 1, served: CALLERS, made: CALLERS });
    assert_eq!(sockets.listening + sockets.served + sockets.made, 45);
}

/// S002-2: less than half a system call per written request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_2_requests_of_22_callers_share_writes() {
    let (_server, client) = Running::with_cache("writes", "c").await;
    let mut tasks = JoinSet::new();
    for caller in 0..22 {
        let cache = client.cache::<u32, u32>("c");
        tasks.spawn(async move {
            for n in 0..1_000 {
                cache.put(&caller, &n).await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let traffic = client.traffic();
    assert!(traffic.requests >= 22_000 && traffic.answers == traffic.requests, "{traffic:?}");
    assert!(traffic.writes * 2 < traffic.requests, "{traffic:?}");
}

/// S002-11: clients times servers, independent of the callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s002_11_connections_are_clients_times_servers() {
    let first = Running::start("times", "A").await;
    let servers = [&first, &Running::start("times", "B").await, &Running::start("times", "C").await];
    let admin = first.client().await;
    admin.administration().create("c", crate::servers::DISTRIBUTED).await.unwrap();
    for count in [1, 3] {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(first.client().await);
        }
        for client in &clients {
            let cache = client.cache::<u32, u32>("c");
            eventually("all servers are known", async || {
                cache.get(&1).await.unwrap();
                client.servers().len() == 3
            })
            .await;
            let mut tasks = JoinSet::new();
            for caller in 0..50 {
                let cache = cache.clone();
                tasks.spawn(async move { cache.put(&caller, &caller).await });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap().unwrap();
            }
        }
        // The client that created the cache has sent no cache operation and knows only its first server.
        let connections: Vec<usize> = servers.iter().map(|server| connections_to(server.at.port())).collect();
        assert_eq!(connections, [count + 1, count, count]);
        for client in clients {
            client.close().await;
        }
        eventually("the connections are closed", async || connections_to(servers[2].at.port()) == 0).await;
    }
}

#[tokio::test]
async fn a_dropped_client_leaves_no_connection_and_no_task() {
    let (server, client) = Running::with_cache("dropped", "c").await;
    let cache = client.cache::<u32, u32>("c");
    cache.put(&1, &1).await.unwrap();
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(before > 0);
    drop(client);
    assert_eq!(cache.get(&1).await.unwrap(), Some(1), "the handle is still one");
    drop(cache);
    eventually("the connection is closed", async || {
        connections_to(server.at.port()) == 0
            && tokio::runtime::Handle::current().metrics().num_alive_tasks() == 0
    })
    .await;
}

#[tokio::test]
async fn operations_of_a_closed_client_fail_with_closed() {
    let (server, client) = Running::with_cache("closed", "c").await;
    let cache = client.cache::<u32, u32>("c");
    client.close().await;
    assert_eq!(connections_to(server.at.port()), 0);
    let error = tokio::time::timeout(PATIENCE, cache.get(&1)).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Closed), "{error}");
}

/// Dropping pending futures leaves the connection usable.
#[tokio::test]
async fn abandoned_operations_do_not_disturb_the_connection() {
    let (_server, client) = Running::with_cache("given-up", "c").await;
    let cache = Arc::new(client.cache::<u32, u32>("c"));
    for n in 0..10_000 {
        let mut put = Box::pin(cache.put(&n, &n));
        // The request is sent and abandoned.
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(put.as_mut().poll(cx).is_ready()));
        polled.await;
    }
    cache.put(&0, &1).await.unwrap();
    assert_eq!(cache.get(&0).await.unwrap(), Some(1));
}

/// S002-12, S002-14: values are slices of receive buffers, and a small get or put allocates at most twice.
#[test]
fn s002_12_a_small_get_or_put_allocates_twice_at_most() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_server, cache) = runtime.block_on(async {
        let (server, client) = Running::with_cache("allocations", "c").await;
        let cache = client.raw("c");
        cache.put(&b"key"[..], &b"value"[..]).await.unwrap();
        for _ in 0..1_000 {
            cache.get(&b"key"[..]).await.unwrap();
        }
        (server, cache)
    });
    const TIMES: u64 = 1_000;
    let gets = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..TIMES {
                let value = cache.get(&b"key"[..]).await.unwrap();
                assert_eq!(value.as_deref(), Some(&b"value"[..]));
            }
        });
    });
    let puts = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..TIMES {
                cache.put(&b"key"[..], &b"value"[..]).await.unwrap();
            }
        });
    });
    let per = |count: u64| count as f64 / TIMES as f64;
    let (gets, puts) = (per(gets.count_total), per(puts.count_total));
    // A new receive buffer is allocated every few hundred responses.
    assert!(gets <= 2.01 && puts <= 2.01, "{gets} per get, {puts} per put");
}

/// S002-20: setting the same flags again costs nothing.
#[test]
fn s002_20_a_handle_with_flags_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_server, client): (Running, Client) = runtime.block_on(Running::with_cache("instances", "c"));
    let cache = client.cache::<u32, u32>("c").with_flags(Flags::SKIP_CACHE_LOAD);
    let again = allocation_counter::measure(|| {
        let again = cache.with_flags(Flags::SKIP_CACHE_LOAD);
        assert_eq!(again.options(), cache.options());
    });
    assert_eq!(again.count_total, 0);
}
