//! A member that consumes nothing: writes to it wait, waiting data is bounded, and other operations go on.

mod members;

use std::sync::mpsc;
use std::time::Duration;

use consort_cache::{CacheConfig, CacheError, CacheManager, CacheMode, OperationError, RawCache};
use members::{Cluster, close, wait_for_rebalance, within_timeout};
use tokio::sync::{mpsc as bounded, oneshot};

/// A member on a thread of its own.
struct Apart {
    /// Stops the member until the other end is dropped.
    stops: bounded::Sender<(oneshot::Sender<()>, mpsc::Receiver<()>)>,
    thread: std::thread::JoinHandle<()>,
}

/// Members on one network, the second of them on a thread of its own, with a cache of one owner.
async fn two(name: &str) -> (CacheManager, RawCache, Apart) {
    let config = CacheConfig { mode: CacheMode::Distributed { owners: 1 }, ..CacheConfig::new("c") };
    let a = Cluster::without_failure_detection(name).join("A").await;
    let cache = within_timeout("open", a.open(config.clone()).raw()).await.expect("opened");
    let (stops, mut stop) = bounded::channel::<(oneshot::Sender<()>, mpsc::Receiver<()>)>(1);
    let (name, ready) = (name.to_owned(), oneshot::channel());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let b = Cluster::without_failure_detection(&name).join("B").await;
            within_timeout("open", b.open(config).raw()).await.expect("opened");
            wait_for_rebalance(&[&b], "c", 2).await;
            ready.0.send(()).expect("waited for");
            while let Some((stopped, until)) = stop.recv().await {
                let _ = stopped.send(());
                let _ = until.recv();
            }
            close([b]).await;
        });
    });
    within_timeout("the other", ready.1).await.expect("it runs");
    wait_for_rebalance(&[&a], "c", 2).await;
    (a, cache, Apart { stops, thread })
}

impl Apart {
    async fn stop(&self) -> mpsc::Sender<()> {
        let (stopped, is_stopped) = oneshot::channel();
        let (until, over) = mpsc::channel();
        self.stops.send((stopped, over)).await.expect("it runs");
        within_timeout("stop", is_stopped).await.expect("it stops");
        until
    }
}

/// Keys whose only owner is a member.
fn keys_of(cache: &RawCache, member: &consort_cache::Address, count: usize) -> Vec<Vec<u8>> {
    let topology = cache.topology().expect("a topology");
    let is_its = |key: &Vec<u8>| topology.current.primary(topology.current.segment_of(key)) == Some(member);
    (0..).map(|n: u32| n.to_be_bytes().to_vec()).filter(is_its).take(count).collect()
}

#[tokio::test]
async fn writes_to_a_stopped_member_wait_and_other_operations_continue() {
    const VALUE: usize = 500_000;
    const COUNT: usize = 400;
    let (a, cache, apart) = two("stands-still").await;
    let view = a.view().expect("a view");
    let other = view.members().iter().find(|member| *member != a.address()).expect("another").clone();
    let (theirs, ours) = (keys_of(&cache, &other, COUNT), keys_of(&cache, a.address(), 100));
    let stopped = apart.stop().await;
    let value = vec![7; VALUE];
    let before = a.traffic().bytes_sent;
    let writing = {
        let (cache, theirs, value) = (cache.clone(), theirs.clone(), value.clone());
        tokio::spawn(async move { cache.put_all(theirs.iter().map(|key| (&key[..], &value[..]))).await })
    };
    // An operation with a timeout fails when it is over, whatever it waits for.
    let brief = cache.with_timeout(Duration::from_millis(500));
    let error = within_timeout("a timeout", brief.put(&theirs[0][..], &value[..])).await.unwrap_err();
    assert_eq!(error, CacheError::Operation(OperationError::TimedOut(Duration::from_millis(500))));
    for key in &ours {
        within_timeout("put", cache.put(&key[..], &b"v"[..])).await.expect("put");
    }
    let sent = a.traffic().bytes_sent - before;
    assert!(!writing.is_finished());
    // The bytes that wait for credits and in the transport's queue, not the 200 MB that are to be written.
    assert!((1..40_000_000).contains(&sent), "{sent}");
    drop(stopped);
    within_timeout("writing", writing).await.expect("no panic").expect("written");
    let got = within_timeout("get_all", cache.get_all(theirs.iter().map(|key| &key[..]))).await.expect("got");
    assert!(got.iter().all(|got| got.as_ref().is_some_and(|got| *got == value)));
    let Apart { stops, thread } = apart;
    drop(stops);
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
    close([a]).await;
}

#[tokio::test]
async fn operations_without_a_waiting_caller_complete() {
    let (a, cache, apart) = two("dropped").await;
    let view = a.view().expect("a view");
    let other = view.members().iter().find(|member| *member != a.address()).expect("another").clone();
    let keys = keys_of(&cache, &other, 100);
    let stopped = apart.stop().await;
    for key in &keys {
        let mut putting = std::pin::pin!(cache.put(&key[..], &b"v"[..]));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(putting.as_mut().poll(&mut context).is_pending());
    }
    drop(stopped);
    // After the dropped operations, because they have the same sender.
    let got = within_timeout("get_all", cache.get_all(keys.iter().map(|key| &key[..]))).await.expect("got");
    assert!(got.iter().all(|got| got.as_deref() == Some(&b"v"[..])));
    let Apart { stops, thread } = apart;
    drop(stops);
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
    close([a]).await;
}

#[tokio::test]
async fn more_operations_than_a_member_may_have_wait_for_their_turn() {
    let (a, cache, apart) = two("turns").await;
    let view = a.view().expect("a view");
    let other = view.members().iter().find(|member| *member != a.address()).expect("another").clone();
    let keys = keys_of(&cache, &other, 20_000);
    let stopped = apart.stop().await;
    let mut reading = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (cache, keys) = (cache.clone(), keys.clone());
        reading.spawn(async move {
            let keys = keys.iter().skip(n * 100).take(1_000).map(|key| &key[..]);
            cache.get_all(keys).await
        });
    }
    tokio::task::yield_now().await;
    drop(stopped);
    for got in within_timeout("reading", reading.join_all()).await {
        assert!(got.expect("got").iter().all(Option::is_none));
    }
    let Apart { stops, thread } = apart;
    drop(stops);
    tokio::task::spawn_blocking(|| thread.join()).await.expect("no panic").expect("no panic");
    close([a]).await;
}
