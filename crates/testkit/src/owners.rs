//! The owners of a server's caches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{CacheManager, ManagerEvent, Phase};
use tokio::sync::watch;
use tokio::time::timeout;

/// No test takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(180);

/// The number of owning servers for each cache of a server; zero during a rebalance.
pub struct Owners(watch::Receiver<BTreeMap<Arc<str>, usize>>);

impl Owners {
    /// Counts from now on.
    pub fn of(manager: &CacheManager) -> Self {
        let (settled, owners) = watch::channel(BTreeMap::new());
        let mut events = manager.events();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let ManagerEvent::Topology { cache, topology, .. } = event {
                    let is_stable = topology.phase == Phase::Stable;
                    let owners = if is_stable { topology.members.len() } else { 0 };
                    settled.send_modify(|all| {
                        all.insert(cache, owners);
                    });
                }
            }
        });
        Self(owners)
    }

    /// Waits until this many servers, this one included, own all user caches. During a topology change the
    /// previous owners may be too few, so all of them must know.
    ///
    /// # Panics
    ///
    /// If they do not within 180 s, or the manager has closed.
    pub async fn are(&self, servers: usize) {
        let mut owners = self.0.clone();
        let is_of_clients = |name: &Arc<str>| !name.starts_with("___");
        let shared = owners.wait_for(|all| {
            let mut of_clients = all.iter().filter(|(name, _)| is_of_clients(name)).peekable();
            of_clients.peek().is_some() && of_clients.all(|(_, owners)| *owners == servers)
        });
        timeout(PATIENCE, shared)
            .await
            .unwrap_or_else(|_| panic!("never: {servers} owners"))
            .expect("it runs");
    }
}
