use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use consort_cache::{Address, CacheManager, Topology};
use tokio::time::{Instant, timeout_at};

use crate::catalog::served_cache::ServedCache;
use crate::limits::REMOVAL_TIMEOUT;

pub(crate) struct RemovalGuard<'a> {
    all: &'a Mutex<BTreeSet<String>>,
    name: String,
}

impl<'a> RemovalGuard<'a> {
    pub(crate) fn begin(all: &'a Mutex<BTreeSet<String>>, name: &str) -> Self {
        all.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        Self { all, name: name.to_owned() }
    }
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

/// Waits at most for [`REMOVAL_TIMEOUT`]. A client that creates a cache of the same name before would find the old entries.
pub(crate) async fn wait_until_closed_elsewhere(manager: &CacheManager, served: &ServedCache, name: &str) {
    let Some(mut topology) = served.topology.clone() else { return };
    let others = |topology: &Topology| {
        let view = manager.view();
        let is_here = |address: &&Address| view.as_ref().is_some_and(|view| view.members().contains(address));
        let others = topology.addresses().filter(|address| *address != manager.address()).filter(is_here);
        others.map(|address| manager.name_of(address)).collect::<Vec<_>>()
    };
    let is_alone =
        |topology: &Option<Topology>| topology.as_ref().is_none_or(|topology| others(topology).is_empty());
    let until = Instant::now() + REMOVAL_TIMEOUT;
    if timeout_at(until, topology.wait_for(is_alone)).await.is_err() {
        let still = topology.borrow().as_ref().map_or_else(Vec::new, others);
        tracing::warn!(cache = name, "removed cache still open on other servers: {}", still.join(", "));
    }
}
