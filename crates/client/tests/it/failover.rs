//! Three servers, of which one dies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use consort_client::{Cache, ClientError};
use tokio::task::JoinSet;

use crate::servers::{DISTRIBUTED, PATIENCE, Running, eventually};

/// What a caller knows of its key: the last value that was acknowledged, and those of later writes that may have been
/// done.
#[derive(Default)]
struct Known {
    acknowledged: u64,
    possible: Vec<u64>,
}

/// Writes ever larger numbers under its own key and reads them back until the end.
async fn write_and_read(
    cache: Cache<u64, u64>,
    key: u64,
    ends: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Known {
    let mut known = Known::default();
    for n in 1.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        match cache.put(&key, &n).await {
            Ok(()) => known = Known { acknowledged: n, possible: Vec::new() },
            Err(error) if error.may_be_done() => known.possible.push(n),
            Err(error) => panic!("{error}"),
        }
        match cache.get(&key).await {
            Ok(found) => {
                let found = found.unwrap_or(0);
                let is_right = found == known.acknowledged || known.possible.contains(&found);
                assert!(is_right, "key {key}: {found}, not {} or {:?}", known.acknowledged, known.possible);
            }
            Err(ClientError::Server { .. } | ClientError::TimedOut { .. }) => {}
            Err(error) => panic!("a read fails: {error}"),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    known
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_a_server_dies_and_the_client_follows() {
    let names = ["A", "B", "C"];
    let mut servers = BTreeMap::new();
    for name in names {
        servers.insert(name, Running::start("failover", name).await);
    }
    let client = servers["A"].client().await;
    client.administration().create("c", DISTRIBUTED).await.unwrap();
    let cache = client.cache::<u64, u64>("c").with_timeout(PATIENCE);
    eventually("all servers are known", async || {
        cache.get(&0).await.unwrap();
        client.servers().len() == 3
    })
    .await;

    let (ends, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for key in 0..64 {
        let running = write_and_read(cache.clone(), key, ends.clone(), done.clone());
        callers.spawn(async move { (key, running.await) });
    }
    let more = async |count: u64| {
        let before = done.load(Ordering::Relaxed);
        eventually("callers go on", async || done.load(Ordering::Relaxed) >= before + count).await;
    };
    more(1_000).await;
    servers["A"].owners.are(3).await;
    servers.remove("B");
    eventually("the client knows", async || client.servers().len() == 2).await;
    more(1_000).await;
    // The one that comes in its place is heard of by itself.
    servers.insert("D", Running::start("failover", "D").await);
    eventually("the client hears of the new one", async || client.servers().len() == 3).await;
    more(1_000).await;
    ends.store(true, Ordering::Relaxed);
    let mut lost = Vec::new();
    while let Some(ended) = callers.join_next().await {
        let (key, known) = ended.unwrap();
        let found = cache.get(&key).await.unwrap().unwrap_or(0);
        if found != known.acknowledged && !known.possible.contains(&found) {
            lost.push((key, found, known.acknowledged));
        }
    }
    assert_eq!(lost, []);
}
