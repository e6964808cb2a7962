//! Members join, leave and crash under load: no acknowledged write is lost, and no call hangs.

mod members;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use consort_cache::{
    Availability, CacheConfig, CacheError, CacheManager, CacheMode, Grouping, HandoverTimeout,
    LEAVE_DEGRADED_TIMEOUT, OpenError, OperationError, RawCache,
};
use members::{Cluster, close, open, wait_for_rebalance, within_timeout};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// A writer's keys.
const KEYS: usize = 40;

/// The writes of one key, as its writer knows them.
#[derive(Clone, Copy, Default, Debug)]
struct Key {
    /// The last write that was acknowledged.
    acknowledged: u64,
    /// The last write that was begun.
    begun: u64,
}

type WrittenKeys = BTreeMap<Vec<u8>, Key>;

/// Writers and readers on some members, until they are stopped.
struct Load {
    is_over: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    running: JoinSet<WrittenKeys>,
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().expect("a number"))
}

/// Writes growing numbers to keys of its own, and reads them back.
async fn write(
    cache: RawCache,
    name: String,
    is_over: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
) -> WrittenKeys {
    let mut written = WrittenKeys::new();
    for round in 1.. {
        for at in 0..KEYS {
            if is_over.load(Relaxed) {
                return written;
            }
            let key = format!("{name} {at}").into_bytes();
            let known = written.entry(key.clone()).or_default();
            known.begun = round;
            match within_timeout("put", cache.put(&key[..], &round.to_be_bytes()[..])).await {
                Ok(()) => known.acknowledged = round,
                Err(CacheError::Closed | CacheError::Operation(OperationError::Uncertain)) => return written,
                Err(error) => panic!("{name}: {error}"),
            }
            writes.fetch_add(1, Relaxed);
            match within_timeout("get", cache.get(&key[..])).await {
                Ok(value) => {
                    assert_eq!(value.as_deref().map(number), Some(round), "{name} reads what it wrote");
                }
                Err(CacheError::Closed) => return written,
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
    written
}

impl Load {
    fn begin(caches: &[RawCache], writers: usize) -> Self {
        let mut load = Self { is_over: Arc::default(), writes: Arc::default(), running: JoinSet::new() };
        load.more(caches, writers, "first");
        load
    }

    fn more(&mut self, caches: &[RawCache], writers: usize, what: &str) {
        for (n, cache) in caches.iter().enumerate() {
            for writer in 0..writers {
                let name = format!("{what} {n} {writer}");
                self.running.spawn(write(cache.clone(), name, self.is_over.clone(), self.writes.clone()));
            }
        }
    }

    /// Waits until this many more writes are acknowledged.
    async fn wait_for_writes(&self, writes: u64) {
        let until = self.writes.load(Relaxed) + writes;
        within_timeout("writes", async {
            while self.writes.load(Relaxed) < until {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn end(self) -> WrittenKeys {
        self.is_over.store(true, Relaxed);
        within_timeout("the end", self.running.join_all()).await.into_iter().flatten().collect()
    }
}

/// Asserts that every key has the last acknowledged value, or one whose write began later.
async fn nothing_is_lost(caches: &[RawCache], written: &WrittenKeys) {
    for cache in caches {
        let got =
            within_timeout("get_all", cache.get_all(written.keys().map(|key| &key[..]))).await.expect("got");
        for ((key, known), value) in written.iter().zip(got) {
            let value = value.as_deref().map_or(0, number);
            let key = String::from_utf8_lossy(key);
            assert!(
                (known.acknowledged..=known.begun).contains(&value),
                "{cache:?} {key}: {value}, {known:?}"
            );
        }
    }
}

fn all(managers: &[CacheManager]) -> Vec<&CacheManager> {
    managers.iter().collect()
}

async fn members_come_and_go(cluster: Cluster) {
    let mut managers: Vec<CacheManager> = cluster.join_all(["A", "B"]).await.into();
    let config = CacheConfig::new("c");
    let mut caches = open(&managers, &config).await;
    let mut load = Load::begin(&caches, 4);
    load.wait_for_writes(500).await;
    for (nth, name) in ["C", "D"].into_iter().enumerate() {
        let manager = cluster.join(name).await;
        let cache = within_timeout("open", manager.open(config.clone()).raw()).await.expect("opened");
        load.more(std::slice::from_ref(&cache), 4, name);
        managers.push(manager);
        caches.push(cache);
        wait_for_rebalance(&all(&managers), "c", 3 + nth).await;
        load.wait_for_writes(500).await;
    }
    // The coordinator leaves, then another member.
    for at in [0, 1] {
        let leaving = managers.remove(at);
        caches.remove(at);
        let before = load.writes.load(Relaxed);
        within_timeout("close", leaving.close()).await.expect("handed over");
        println!("{} writes while a member left", load.writes.load(Relaxed) - before);
        wait_for_rebalance(&all(&managers), "c", managers.len()).await;
        load.wait_for_writes(500).await;
    }
    let written = load.end().await;
    nothing_is_lost(&caches, &written).await;
    close(managers).await;
}

#[tokio::test]
async fn joins_and_leaves_lose_no_entry() {
    members_come_and_go(Cluster::loopback("come-and-go")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_and_leaves_over_tcp_lose_no_entry() {
    members_come_and_go(Cluster::tcp("come-and-go-tcp")).await;
}

async fn one_crashes(cluster: Cluster) {
    let mut managers: Vec<CacheManager> = cluster.join_all(["A", "B", "C", "D"]).await.into();
    let mut caches = open(&managers, &CacheConfig::new("c")).await;
    // The coordinator crashes, then another member.
    for at in [0, 2] {
        let load = Load::begin(&caches, 4);
        load.wait_for_writes(1_000).await;
        let crashing = managers.remove(at);
        caches.remove(at);
        within_timeout("abort", crashing.abort()).await;
        wait_for_rebalance(&all(&managers), "c", managers.len()).await;
        load.wait_for_writes(1_000).await;
        let written = load.end().await;
        nothing_is_lost(&caches, &written).await;
    }
    close(managers).await;
}

#[tokio::test]
async fn a_crash_loses_nothing_that_was_acknowledged() {
    one_crashes(Cluster::loopback("crash")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_that_was_acknowledged_over_tcp() {
    one_crashes(Cluster::tcp("crash-tcp")).await;
}

#[tokio::test]
async fn member_with_other_settings_is_refused_with_both_values() {
    let managers = Cluster::loopback("refused").join_all(["A", "B"]).await;
    let caches = open(&managers[..1], &CacheConfig::new("c")).await;
    let put = caches[0].put(&b"k"[..], &b"v"[..]);
    within_timeout("put", put).await.expect("put");
    let b = &managers[1];
    let refused = |config: CacheConfig| async {
        let error = within_timeout("open", b.open(config).raw()).await.expect_err("refused");
        assert!(matches!(error, OpenError::Refused(_)), "{error:?}");
        error.to_string()
    };
    let config = CacheConfig::new("c");
    let text = refused(CacheConfig { segments: 64, ..config.clone() }).await;
    assert_eq!(text, "cache c: segments is 64 here and 256 in the cluster");
    let text = refused(CacheConfig { mode: CacheMode::Distributed { owners: 3 }, ..config.clone() }).await;
    assert!(text.contains("owners: 3 }") && text.contains("owners: 2 }"), "{text}");
    let error = within_timeout("open", b.cache::<String, String>("c")).await.expect_err("refused");
    let text = error.to_string();
    assert!(text.contains("application/x-postcard here and application/octet-stream"), "{text}");
    let text = refused(CacheConfig { grouping: Grouping::Tag, ..config.clone() }).await;
    assert_eq!(text, "cache c: grouping is Tag here and None in the cluster");
    let text = refused(CacheConfig { segments: 0, ..config.clone() }).await;
    assert_eq!(text, "cache c: segments cannot be 0");
    // It may join with the right settings.
    let cache = within_timeout("open", b.open(config).raw()).await.expect("opened");
    assert_eq!(within_timeout("get", cache.get(&b"k"[..])).await.expect("got").as_deref(), Some(&b"v"[..]));
    let error = within_timeout("open", b.cache::<String, String>("c")).await.expect_err("open otherwise");
    assert!(matches!(error, OpenError::LocalConfigMismatch { setting: "encoding", .. }), "{error}");
    close(managers).await;
}

async fn no_task_but_these(tasks: usize) {
    within_timeout("tasks end", async {
        while Handle::current().metrics().num_alive_tasks() > tasks {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_thousand_caches_leave_no_task() {
    let managers = Cluster::loopback("thousand").join_all(["A", "B"]).await;
    let before = Handle::current().metrics().num_alive_tasks();
    for n in 0..500 {
        let name = format!("c{}", n % 7);
        let config = CacheConfig { segments: 16, ..CacheConfig::new(&name) };
        let mut caches = Vec::new();
        for manager in &managers {
            caches.push(within_timeout("open", manager.open(config.clone()).raw()).await.expect("opened"));
        }
        within_timeout("put", caches[n % 2].put(&b"k"[..], &b"v"[..])).await.expect("put");
        for manager in &managers {
            assert!(within_timeout("leave", manager.leave(&name)).await.expect("left"));
        }
    }
    no_task_but_these(before).await;
    close(managers).await;
}

#[tokio::test]
async fn managers_leave_no_task_however_they_end() {
    let cluster = Cluster::loopback("tasks");
    let before = Handle::current().metrics().num_alive_tasks();
    for n in 0..30 {
        let manager = cluster.join("A").await;
        let cache = within_timeout("open", manager.open(CacheConfig::new("c")).raw()).await.expect("opened");
        within_timeout("put", cache.put(&b"k"[..], &b"v"[..])).await.expect("put");
        match n % 3 {
            0 => within_timeout("close", manager.close()).await.expect("closed"),
            1 => within_timeout("abort", manager.abort()).await,
            _ => drop(manager),
        }
        no_task_but_these(before).await;
        assert_eq!(within_timeout("get", cache.get(&b"k"[..])).await, Err(CacheError::Closed));
    }
}

/// Returns A of two members of which B has crashed, with a cache in which every entry has this many owners.
async fn left_alone(cluster: &str, owners: u16) -> (CacheManager, RawCache) {
    let managers = Cluster::loopback(cluster).join_all(["A", "B"]).await;
    let config = CacheConfig { mode: CacheMode::Distributed { owners }, ..CacheConfig::new("c") };
    let mut caches = open(&managers, &config).await;
    wait_for_rebalance(&managers.each_ref(), "c", 2).await;
    let [a, b] = managers;
    let mut topologies = a.watch_topology("c").expect("it is open");
    within_timeout("abort", b.abort()).await;
    let is_degraded = topologies.wait_for(|topology| {
        topology.as_ref().is_some_and(|topology| topology.availability != Availability::Available)
    });
    drop(within_timeout("B is missed", is_degraded).await.expect("its sender is there"));
    (a, caches.swap_remove(0))
}

/// The other owner is unreachable, and may never return: closing does not wait for it as long as for a state
/// transfer.
#[tokio::test]
async fn last_member_with_unique_entries_closes_soon() {
    let (a, _) = left_alone("alone", 1).await;
    let begin = tokio::time::Instant::now();
    let after = LEAVE_DEGRADED_TIMEOUT;
    assert_eq!(within_timeout("close", a.close()).await, Err(HandoverTimeout { cache: "c".into(), after }));
    assert!(begin.elapsed() < after * 2, "{:?}", begin.elapsed());
}

/// The unreachable member has all of the data, or has crashed.
#[tokio::test]
async fn last_member_closes_at_once_if_lost_members_have_its_entries_and_names_them() {
    let (a, cache) = left_alone("behind", 2).await;
    let error =
        within_timeout("put", cache.put(&b"k"[..], &b"v"[..])).await.expect_err("half is no majority");
    let text = error.to_string();
    assert!(text.starts_with("cache is degraded: owners of segment "), "{text}");
    assert!(text.ends_with(" are unreachable: B"), "{text}");
    // A wait until the timeout would end with `HandoverTimeout`.
    assert_eq!(within_timeout("close", a.close()).await, Ok(()));
}
