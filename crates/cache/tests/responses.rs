//! A member that requests much more than it consumes: the owner of the values holds a bounded part of the responses.

mod members;

use std::sync::mpsc;

use consort_cache::{CacheConfig, CacheMode, RawCache};
use members::{Cluster, close, wait_for_rebalance, within_timeout};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const VALUE_BYTES: usize = 2 * 1024 * 1024;
const READS: usize = 200;

fn config() -> CacheConfig {
    CacheConfig { mode: CacheMode::Distributed { owners: 1 }, ..CacheConfig::new("c") }
}

/// A key whose only owner is a member.
fn key_of(cache: &RawCache, member: &consort_cache::Address) -> Vec<u8> {
    let topology = cache.topology().expect("a topology");
    let is_its = |key: &Vec<u8>| topology.current.primary(topology.current.segment_of(key)) == Some(member);
    (0..).map(|n: u32| n.to_be_bytes().to_vec()).find(is_its).expect("a key")
}

/// The reader has a thread of its own, which stops after the first response.
#[tokio::test]
async fn owner_sends_no_more_than_a_reader_that_has_stopped_takes_and_each_response_once() {
    let name = "reader-stops";
    let owner = Cluster::without_failure_detection(name).join("A").await;
    let cache = within_timeout("open", owner.open(config()).raw()).await.expect("opened");
    let (ready, is_ready) = oneshot::channel();
    let (keys, key) = oneshot::channel::<Vec<u8>>();
    let (stopped, is_stopped) = oneshot::channel();
    let (resume, until) = mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let reader = Cluster::without_failure_detection(name).join("B").await;
            let cache = within_timeout("open", reader.open(config()).raw()).await.expect("opened");
            wait_for_rebalance(&[&reader], "c", 2).await;
            ready.send(()).expect("waited for");
            let key = key.await.expect("a key");
            let mut reads = JoinSet::new();
            for _ in 0..READS {
                let (cache, key) = (cache.clone(), key.clone());
                reads.spawn(async move { cache.get(&key[..]).await.expect("read").expect("a value").len() });
            }
            let mut lengths = vec![reads.join_next().await.expect("one").expect("no panic")];
            stopped.send(()).expect("waited for");
            until.recv().expect("it continues");
            while let Some(length) = within_timeout("a response", reads.join_next()).await {
                lengths.push(length.expect("no panic"));
            }
            assert_eq!(lengths, [VALUE_BYTES; READS]);
            close([reader]).await;
        });
    });
    within_timeout("the reader", is_ready).await.expect("it runs");
    wait_for_rebalance(&[&owner], "c", 2).await;
    let key = key_of(&cache, owner.address());
    cache.put(&key[..], &vec![7; VALUE_BYTES][..]).await.expect("put");
    let before = owner.traffic().bytes_sent;
    keys.send(key).expect("waited for");
    within_timeout("a stop", is_stopped).await.expect("it stops");
    let sent = owner.traffic().bytes_sent - before;
    // The bytes that wait for credits and in the transport's queue, not the 400 MB that were requested.
    assert!((VALUE_BYTES as u64..64_000_000).contains(&sent), "{sent}");
    resume.send(()).expect("it waits");
    tokio::task::spawn_blocking(|| reader.join()).await.expect("no panic").expect("no panic");
    let sent = owner.traffic().bytes_sent - before;
    let once = (READS * VALUE_BYTES) as u64;
    assert!((once..once + once / 20).contains(&sent), "each response is sent once: {sent} of {once}");
    close([owner]).await;
}
