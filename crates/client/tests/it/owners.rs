//! Who shares the caches of a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use consort_cache::{CacheManager, ManagerEvent, Phase};
use tokio::sync::watch;
use tokio::time::timeout;

use super::PATIENCE;

/// Of each cache of a server, how many servers have what they are to have; none while it moves.
pub(crate) struct Owners(watch::Receiver<BTreeMap<Arc<str>, usize>>);

impl Owners {
    /// From when this is asked for.
    pub(crate) fn of(manager: &CacheManager) -> Self {
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

    /// Waits until all caches of clients are shared by so many servers, this one among them. While the newest does not,
    /// those that had them before may be too few without one of them to know that they are the ones that are left.
    pub(crate) async fn are(&self, servers: usize) {
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
