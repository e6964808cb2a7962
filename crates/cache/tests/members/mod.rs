//! Members of one process for live tests, over queues in memory or over TCP on loopback.
#![allow(dead_code, unreachable_pub)] // each test program uses a part

use std::time::Duration;

use consort_cache::{CacheConfig, CacheManager, Channel, ManagerBuilder, Phase, RawCache, Topology};
use consort_conf::{STOCK, Variables, parse_stack};
use tokio::time::timeout;

pub use consort_testkit::free_base;

/// The timeout of all waits in these tests, which normally take less than a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one test.
pub struct Cluster {
    pub name: String,
    text: String,
    pub variables: Variables,
}

impl Cluster {
    /// Members that exchange packets through queues in memory.
    pub fn loopback(name: &str) -> Self {
        let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3/>\
             <FD_ALL3 timeout=\"4000\" interval=\"500\"/><VERIFY_SUSPECT2 timeout=\"500\"/><NAKACK2/><UNICAST3/>\
             <STABLE/><GMS join_timeout=\"200\"/><UFC/><MFC/><FRAG4/></config>";
        Self { name: name.to_owned(), text: text.to_owned(), variables: Variables::new() }
    }

    /// Like `loopback`, without failure detection: members may be silent for any time.
    pub fn without_failure_detection(name: &str) -> Self {
        let mut cluster = Self::loopback(name);
        let (before, rest) = cluster.text.split_once("<MERGE3/>").expect("a stack");
        let (_, after) = rest.split_once("<NAKACK2/>").expect("a stack");
        cluster.text = format!("{before}<NAKACK2/>{after}");
        cluster
    }

    /// The stock stack over TCP.
    pub fn tcp(name: &str) -> Self {
        Self::tcp_at(name, free_base())
    }

    /// The stock stack over TCP, from this port on.
    pub fn tcp_at(name: &str, base: u16) -> Self {
        let variables = consort_testkit::members_from(base);
        let (_, text) = STOCK.iter().find(|(name, _)| *name == "tcp.xml").expect("a stock stack");
        Self { name: name.to_owned(), text: (*text).to_owned(), variables }
    }

    pub fn builder(&self, name: &str) -> ManagerBuilder {
        let stack = parse_stack("members.xml", &self.text, &self.variables);
        let stack = stack.unwrap_or_else(|error| panic!("{error}"));
        CacheManager::from_channel(Channel::from_config(stack.config)).name(name)
    }

    pub async fn join(&self, name: &str) -> CacheManager {
        match timeout(PATIENCE, self.builder(name).connect(&self.name)).await {
            Ok(Ok(manager)) => manager,
            Ok(Err(error)) => panic!("{name}: {error}"),
            Err(_) => panic!("{name} does not join"),
        }
    }

    pub async fn join_all<const N: usize>(&self, names: [&str; N]) -> [CacheManager; N] {
        let mut managers = Vec::new();
        for name in names {
            managers.push(self.join(name).await);
        }
        managers.try_into().expect("as many")
    }
}

/// Waits for a future, and fails after the timeout.
pub async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: nothing for {PATIENCE:?}"),
    }
}

/// Waits until a cache has this many members and no rebalance is in progress.
pub async fn wait_for_rebalance(managers: &[&CacheManager], cache: &str, members: usize) {
    for manager in managers {
        let mut topologies = manager.watch_topology(cache).expect("an open cache");
        let is_settled = |topology: &Option<Topology>| {
            topology.as_ref().is_some_and(|topology| {
                topology.phase == Phase::Stable
                    && topology.members.len() == members
                    && topology.current.members().len() == members
            })
        };
        let waiting = topologies.wait_for(is_settled);
        if timeout(PATIENCE, waiting).await.is_err() {
            let topology = manager.watch_topology(cache).and_then(|watch| watch.borrow().clone());
            panic!("{}: no {members} settled members: {topology:?}", manager.name());
        }
    }
}

/// Opens a cache of bytes on all members.
pub async fn open(managers: &[CacheManager], config: &CacheConfig) -> Vec<RawCache> {
    let mut caches = Vec::new();
    for manager in managers {
        caches.push(within_timeout("open", manager.open(config.clone()).raw()).await.expect("opened"));
    }
    let all: Vec<&CacheManager> = managers.iter().collect();
    wait_for_rebalance(&all, &config.name, managers.len()).await;
    caches
}

pub async fn close(managers: impl IntoIterator<Item = CacheManager>) {
    for manager in managers {
        within_timeout("close", manager.close()).await.expect("handed over");
    }
}
