use consort_cache::{Address, Availability, CacheManager, Phase, Topology};
use tokio::time::{Instant, timeout_at};

use crate::catalog::caches::Caches;
use crate::catalog::client_topology::Endpoints;
use crate::limits::ROLLOUT_TIMEOUT;
use crate::transactions;

/// Waits until all current servers have these caches and their share of the entries, at most for [`ROLLOUT_TIMEOUT`]. A client
/// that gets the response before, and then loses a server, could find the cache degraded.
pub(crate) async fn wait_until_open_on_all(caches: &Caches, names: &[String]) {
    let until = Instant::now() + ROLLOUT_TIMEOUT;
    // If the list of servers is not available here, the other servers still open the caches.
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
                tracing::warn!(cache, "new cache not open on all servers yet: {}", missing.join(", "));
            }
        }
    }
}

fn missing(manager: &CacheManager, servers: &Endpoints, topology: &Topology) -> Vec<String> {
    let view = manager.view();
    let members = view.iter().flat_map(|view| view.members());
    let is_server = |member: &&Address| servers.contains_key(&member.to_string());
    let is_missing = |member: &&Address| !topology.addresses().any(|own| own == *member);
    members.filter(is_server).filter(is_missing).map(|member| manager.name_of(member)).collect()
}
