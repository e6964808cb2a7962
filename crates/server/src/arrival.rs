//! Until a cache that was made is on all servers.
//!
//! The others open it when they hear of it. Who was told before that it is there, and then lost a server, could find it without
//! most of its few members, and so degraded.

use consort_cache::{Address, Availability, CacheManager, Phase, Topology};
use tokio::time::{Instant, timeout_at};

use crate::bounds::EVERYWHERE_WITHIN;
use crate::caches::Caches;
use crate::topology::Endpoints;
use crate::transactions;

/// Waits until all servers that are here now have these caches, each with its share of what was written so far. One that has
/// none after [`EVERYWHERE_WITHIN`], as it is silent or cannot open it, is waited for no longer: it is said which.
pub(crate) async fn everywhere(caches: &Caches, names: &[String]) {
    let until = Instant::now() + EVERYWHERE_WITHIN;
    // If it cannot be told who the servers are, those that can will find the caches all the same.
    let Ok(servers) = caches.servers().await else { return };
    let missing = |topology: &Topology| missing(caches.manager(), &servers, topology);
    for name in names {
        let Some(served) = caches.get(name).filter(|served| !served.is_local()) else { continue };
        let shared: &[&str] = if served.transactions.is_some() { &transactions::CACHES } else { &[] };
        for cache in shared.iter().copied().chain([name.as_str()]) {
            let Some(mut topology) = caches.manager().watch_topology(cache) else { continue };
            let is_there = |topology: &Option<Topology>| {
                topology.as_ref().is_some_and(|topology| {
                    let is_degraded = topology.availability != Availability::Available;
                    is_degraded || (topology.phase == Phase::Stable && missing(topology).is_empty())
                })
            };
            let arrived = timeout_at(until, topology.wait_for(is_there)).await.is_ok();
            if !arrived {
                let installed = topology.borrow();
                let missing = installed.as_ref().map_or_else(Vec::new, &missing);
                tracing::warn!(cache, "a new cache is not on all servers yet: {}", missing.join(", "));
            }
        }
    }
}

/// The servers that are here and do not have a cache.
fn missing(manager: &CacheManager, servers: &Endpoints, topology: &Topology) -> Vec<String> {
    let view = manager.view();
    let members = view.iter().flat_map(|view| view.members());
    let is_server = |member: &&Address| servers.contains_key(&member.to_string());
    let is_missing = |member: &&Address| !topology.addresses().any(|own| own == *member);
    members.filter(is_server).filter(is_missing).map(|member| manager.name_of(member)).collect()
}
