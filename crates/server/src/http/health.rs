//! The health of a server and its caches, in Infinispan's terms.

use std::sync::Arc;

use consort_cache::{Availability, Phase, ProcessMemory, Topology};
use serde_json::json;

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Health {
    Healthy,
    Rebalancing,
    Initializing,
    /// Too many owners are unreachable, a defined cache could not be opened here, or writes are refused because memory is
    /// short.
    Degraded,
    /// Only caches have this state; the server is degraded then.
    Failed,
}

impl Health {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "HEALTHY",
            Self::Rebalancing => "HEALTHY_REBALANCING",
            Self::Initializing => "INITIALIZING",
            Self::Degraded => "DEGRADED",
            Self::Failed => "FAILED",
        }
    }

    pub(crate) fn of_cache(served: &ServedCache) -> Self {
        let of = |topology: &Topology| Self::of_owners(&topology.availability, topology.phase);
        // A local cache has no owners on other servers.
        let without = if served.is_local() { Self::Healthy } else { Self::Initializing };
        served.with_topology(of).unwrap_or(without)
    }

    const fn of_owners(availability: &Availability, phase: Phase) -> Self {
        match (availability, phase) {
            (Availability::Degraded { .. }, _) => Self::Degraded,
            (Availability::Available, Phase::Stable) => Self::Healthy,
            (Availability::Available, Phase::Restoring) => Self::Initializing,
            (Availability::Available, Phase::ReadOldWriteAll | Phase::ReadNewWriteAll) => Self::Rebalancing,
        }
    }

    /// Degraded while a member misses heartbeats: writes of its keys wait until it sends a message or is removed.
    pub(crate) fn of_cluster(caches: &Caches) -> Self {
        let silent = if caches.manager().silent().is_empty() { Self::Healthy } else { Self::Degraded };
        Self::of_caches(caches).max(silent)
    }

    pub(crate) fn of_caches(caches: &Caches) -> Self {
        let all = caches.all();
        let worst = all.iter().map(|(_, served)| Self::of_cache(served)).max();
        let is_failing = caches.failed.len() > 0 || !caches.failing_stores().is_empty();
        let is_degraded = is_failing || is_memory_short(caches);
        let degraded = if is_degraded { Self::Degraded } else { Self::Healthy };
        worst.unwrap_or(Self::Healthy).max(Self::of_cache(&caches.counters.served)).max(degraded)
    }
}

fn is_memory_short(caches: &Caches) -> bool {
    let manager = caches.manager();
    manager.process_memory().is_some_and(ProcessMemory::is_short) || !manager.short_members().is_empty()
}

/// Readable without authentication, so without sizes.
pub(crate) fn memory_summary(caches: &Caches) -> Option<String> {
    let usage = caches.manager().process_memory()?.usage();
    let percent = usage.used as f64 / usage.limit.bytes as f64 * 100.0;
    let short = caches.manager().short_members();
    Some(match (usage.is_short, short.len()) {
        (true, _) => format!("{percent:.0} % used, short"),
        (false, 0) => format!("{percent:.0} % used"),
        (false, others) => format!("{percent:.0} % used, {others} other members short"),
    })
}

fn memory_detail(caches: &Caches) -> serde_json::Value {
    let manager = caches.manager();
    let short: Vec<String> = manager.short_members().iter().map(|member| manager.name_of(member)).collect();
    let usage = manager.process_memory().map(ProcessMemory::usage);
    let own = usage.map(|usage| {
        json!({
            "limit_bytes": usage.limit.bytes,
            "limit_of": &*usage.limit.of,
            "high_water_mark_bytes": usage.high_water_mark,
            "used_bytes": usage.used,
            "entries_bytes": usage.entries,
            "is_short": usage.is_short,
            "refused_writes": usage.refused,
        })
    });
    json!({"server": own, "short_members": short})
}

pub(crate) fn detail(caches: &Caches) -> String {
    let manager = caches.manager();
    let members = manager.view().map(|view| view.members().to_vec()).unwrap_or_default();
    let names: Vec<String> = members.iter().map(|member| manager.name_of(member)).collect();
    let silent: Vec<String> = manager.silent().iter().map(|member| manager.name_of(member)).collect();
    let mut failing = caches.failing_stores();
    let mut cache_health = |(name, served): &(String, Arc<ServedCache>)| match failing.remove(name) {
        Some(error) => json!({"status": Health::Degraded.name(), "cache_name": name, "error": error}),
        None => json!({"status": Health::of_cache(served).name(), "cache_name": name}),
    };
    let failed = |(name, error): (String, String)| json!({"status": Health::Failed.name(), "cache_name": name, "error": error});
    let failed = caches.failed.all().into_iter().map(failed);
    let mut each: Vec<serde_json::Value> = caches.all().iter().map(&mut cache_health).collect();
    // The remaining failing stores belong to internal caches.
    let own = |(name, error)| json!({"status": Health::Degraded.name(), "cache_name": name, "error": error});
    each.extend(failing.into_iter().map(own).chain(failed));
    json!({
        "cluster_health": {
            "cluster_name": manager.cluster(),
            "health_status": Health::of_cluster(caches).name(),
            "number_of_nodes": names.len(),
            "node_names": names,
            "silent_node_names": silent,
        },
        "cache_health": each,
        "memory": memory_detail(caches),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_healthy_rebalancing_initializing_or_degraded_by_the_state_of_its_owners() {
        for (phase, name) in [
            (Phase::Stable, "HEALTHY"),
            (Phase::ReadOldWriteAll, "HEALTHY_REBALANCING"),
            (Phase::ReadNewWriteAll, "HEALTHY_REBALANCING"),
            (Phase::Restoring, "INITIALIZING"),
        ] {
            assert_eq!(Health::of_owners(&Availability::Available, phase).name(), name, "{phase:?}");
            let degraded = Availability::Degraded { away: [].into() };
            assert_eq!(Health::of_owners(&degraded, phase), Health::Degraded, "{phase:?}");
        }
    }

    #[test]
    fn worst_cache_decides_the_health_of_a_server() {
        let worst = [Health::Rebalancing, Health::Healthy].into_iter().max();
        assert_eq!(worst, Some(Health::Rebalancing));
        let all = [Health::Healthy, Health::Rebalancing, Health::Initializing, Health::Degraded];
        assert!(all.is_sorted());
    }
}
