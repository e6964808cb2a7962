use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{Availability, Limit, Phase, RebalanceTimes, StoreHealth, StoreStats};

use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::http::exposition::{Exposition, Kind};
use crate::metrics::cache_stats::Stats;

type CacheMetric = (Kind, &'static str, &'static str, fn(&Caches, &ServedCache) -> Option<u64>);

const CACHE_METRICS: &[CacheMetric] = &[
    (Kind::Counter, "consort_cache_hits", "Reads on this server that found something.", |_, it| {
        stat(it, |it| it.hits.get())
    }),
    (Kind::Counter, "consort_cache_misses", "Reads on this server that found nothing.", |_, it| {
        stat(it, |it| it.misses.get())
    }),
    (Kind::Counter, "consort_cache_stores", "Writes on this server.", |_, it| stat(it, |it| it.stores.get())),
    (Kind::Counter, "consort_cache_remove_hits", "Removals on this server that found something.", |_, it| {
        stat(it, |it| it.remove_hits.get())
    }),
    (Kind::Counter, "consort_cache_remove_misses", "Removals on this server that found nothing.", |_, it| {
        stat(it, |it| it.remove_misses.get())
    }),
    (
        Kind::Gauge,
        "consort_cache_entries",
        "Entries in this server's memory, copies for others included.",
        |_, it| Some(it.cache.local_len()),
    ),
    (Kind::Gauge, "consort_cache_bytes", "Bytes of the keys and values of these.", |_, it| {
        Some(it.cache.local_bytes())
    }),
    (
        Kind::Gauge,
        "consort_cache_passive_entries",
        "Entries that are only in this server's store.",
        |_, it| Some(it.cache.passive_len()),
    ),
    (
        Kind::Gauge,
        "consort_cache_index_entries",
        "Values in this server's index of the cache, and entries with unknown ones.",
        |_, it| Some(it.index.as_ref()?.index.entries()),
    ),
    (Kind::Gauge, "consort_cache_index_bytes", "Bytes of this server's index of the cache.", |_, it| {
        Some(it.index.as_ref()?.index.bytes())
    }),
    (
        Kind::Counter,
        "consort_cache_index_lookups",
        "Parts of queries that this server's index has answered, for a segment each.",
        |_, it| Some(it.index.as_ref()?.index.walks().0),
    ),
    (
        Kind::Counter,
        "consort_cache_index_scans",
        "Parts of queries that have scanned a segment of an indexed cache on this server.",
        |_, it| Some(it.index.as_ref()?.index.walks().1),
    ),
    (Kind::Gauge, "consort_cache_members", "Servers that have the cache open.", |_, it| {
        it.with_topology(|topology| topology.members.len() as u64)
    }),
    (
        Kind::Gauge,
        "consort_cache_topology",
        "The topology's number, which grows with every change.",
        |_, it| it.with_topology(|topology| topology.id.into()),
    ),
    (Kind::Gauge, "consort_cache_available", "Whether all of the cache can be used.", |_, it| {
        it.with_topology(|topology| u64::from(topology.availability == Availability::Available))
    }),
    (Kind::Gauge, "consort_cache_rebalancing", "Whether entries are on their way to new owners.", |_, it| {
        it.with_topology(|topology| u64::from(topology.phase != Phase::Stable))
    }),
    (
        Kind::Gauge,
        "consort_cache_primary_entries",
        "Entries on this server of which it is the primary owner.",
        |_, it| Some(it.cache.primary_len()),
    ),
    (
        Kind::Gauge,
        "consort_cache_limit_entries",
        "Entries that this server may have in memory (max-count).",
        |_, it| match it.cache.memory()?.limit {
            Limit::Entries(entries) => Some(entries),
            Limit::Bytes(_) => None,
        },
    ),
    (
        Kind::Gauge,
        "consort_cache_limit_bytes",
        "Bytes that entries may take in this server's memory (max-size).",
        |_, it| match it.cache.memory()?.limit {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::Entries(_) => None,
        },
    ),
    (
        Kind::Counter,
        "consort_cache_evictions",
        "Entries that have made room for others on this server; with a store, those whose values have.",
        |_, it| Some(it.cache.evictions()),
    ),
    (
        Kind::Counter,
        "consort_cache_expirations",
        "Entries that this server has taken out because they had expired.",
        |_, it| Some(it.cache.expirations()),
    ),
    (Kind::Counter, "consort_cache_rebalances", "Rebalances that have ended.", |_, it| {
        Some(it.cache.rebalance_times().ended)
    }),
    (
        Kind::Gauge,
        "consort_cache_segments_to_come",
        "Segments that are on their way to this server.",
        |caches, it| Some(caches.manager().rebalance_progress(it.cache.name()).segments_left as u64),
    ),
    (
        Kind::Gauge,
        "consort_cache_bytes_to_come",
        "Bytes of entries on their way to this server, about.",
        |caches, it| Some(caches.manager().rebalance_progress(it.cache.name()).bytes_left),
    ),
];

fn stat(served: &ServedCache, of: fn(&Stats) -> i64) -> Option<u64> {
    u64::try_from(of(&served.stats)).ok()
}

/// A family has at most [`CACHES_MAX`](crate::limits::CACHES_MAX) values; that of errors has as many for each status.
pub(super) fn append(out: &mut Exposition, caches: &Caches) {
    let all = caches.all();
    for (kind, name, help, of) in CACHE_METRICS {
        out.family(*kind, name, help);
        for (cache, served) in &all {
            if let Some(value) = of(caches, served) {
                out.value(&[("cache", cache)], value);
            }
        }
    }
    rebalances(out, &all);
    listeners(out, caches, &all);
    errors(out, caches, &all);
    stores(out, caches);
    let help = "Whether the cache is defined and could not be opened on this server.";
    out.family(Kind::Gauge, "consort_cache_failed", help);
    for (cache, _) in &all {
        out.value(&[("cache", cache)], 0);
    }
    for (cache, _) in caches.failed.all() {
        out.value(&[("cache", &cache)], 1);
    }
}

type RebalanceMetric = (Kind, &'static str, &'static str, fn(&RebalanceTimes) -> Option<Duration>);

const REBALANCE_METRICS: &[RebalanceMetric] = &[
    (
        Kind::Counter,
        "consort_cache_rebalance_seconds",
        "How long the rebalances that have ended took together.",
        |times| Some(times.total),
    ),
    (
        Kind::Gauge,
        "consort_cache_rebalance_last_seconds",
        "How long the last rebalance took; no value before one has ended.",
        |times| times.last,
    ),
    (
        Kind::Gauge,
        "consort_cache_rebalance_running_seconds",
        "For how long the running rebalance has been running; 0 if none runs.",
        |times| Some(times.running.unwrap_or_default()),
    ),
];

fn rebalances(out: &mut Exposition, all: &[(String, Arc<ServedCache>)]) {
    for (kind, name, help, of) in REBALANCE_METRICS {
        out.family(*kind, name, help);
        for (cache, served) in all {
            if let Some(value) = of(&served.cache.rebalance_times()) {
                out.value(&[("cache", cache)], value.as_secs_f64());
            }
        }
    }
}

fn listeners(out: &mut Exposition, caches: &Caches, all: &[(String, Arc<ServedCache>)]) {
    let mut counts = BTreeMap::<String, (usize, usize)>::new();
    for (name, (listeners, near)) in caches.listeners.count() {
        // Clients may have named an alias.
        let Some(served) = caches.get(name.as_str()) else { continue };
        let (all, all_near) = counts.entry(served.cache.name().to_owned()).or_default();
        *all += listeners;
        *all_near += near;
    }
    let count = |cache: &String| counts.get(cache).copied().unwrap_or_default();
    let help = "Listeners that clients of this server have added, near caches included.";
    out.family(Kind::Gauge, "consort_cache_listeners", help);
    for (cache, _) in all {
        out.value(&[("cache", cache)], count(cache).0);
    }
    let help = "Near caches of clients of this server, each of a connection.";
    out.family(Kind::Gauge, "consort_cache_near_caches", help);
    for (cache, _) in all {
        out.value(&[("cache", cache)], count(cache).1);
    }
}

/// Requests that name no open cache of clients have the cache "", so that clients cannot add values.
fn errors(out: &mut Exposition, caches: &Caches, all: &[(String, Arc<ServedCache>)]) {
    let help = "Requests of Hot Rod clients that were answered with an error, by cache and status. Without a cache: those \
                that name no cache of clients which is open here.";
    out.family(Kind::Counter, "consort_cache_errors", help);
    let of_caches = all.iter().map(|(cache, served)| (cache.as_str(), &served.stats.errors));
    for (cache, errors) in of_caches.chain([("", &caches.telemetry.errors_without_cache)]) {
        for (status, count) in errors.all() {
            out.value(&[("cache", cache), ("status", status.name())], count);
        }
    }
}

type StoreMetric = (Kind, &'static str, &'static str, fn(&StoreStats, &StoreHealth) -> Option<u64>);

const STORE_METRICS: &[StoreMetric] = &[
    (Kind::Gauge, "consort_store_bytes", "Bytes of the files of the cache's store.", |stats, _| {
        Some(stats.disk_bytes)
    }),
    (
        Kind::Gauge,
        "consort_store_dead_bytes",
        "Bytes of these that hold no entry any more; compaction frees them.",
        |stats, _| Some(stats.dead_bytes),
    ),
    (Kind::Gauge, "consort_store_entries", "Entries in the cache's store.", |stats, _| Some(stats.entries)),
    (
        Kind::Gauge,
        "consort_store_free_bytes",
        "Bytes that the file system of the cache's store has free.",
        |_, health| health.free_bytes,
    ),
    (
        Kind::Gauge,
        "consort_store_failing",
        "Whether the last write of the cache's store failed.",
        |_, health| Some(u64::from(health.failing.is_some())),
    ),
    (
        Kind::Counter,
        "consort_store_failures",
        "Writes of the cache's store that have failed.",
        |_, health| Some(health.failures),
    ),
    (Kind::Gauge, "consort_store_pending", "Changes that wait for the cache's store.", |_, health| {
        Some(health.pending)
    }),
];

fn stores(out: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    let all: Vec<(String, StoreStats, StoreHealth)> = caches
        .with_stores()
        .into_iter()
        .filter_map(|name| {
            let (stats, health) = (manager.store_stats(&name)?, manager.store_health(&name)?);
            Some((name, stats, health))
        })
        .collect();
    for (kind, name, help, of) in STORE_METRICS {
        out.family(*kind, name, help);
        for (cache, stats, health) in &all {
            if let Some(value) = of(stats, health) {
                out.value(&[("cache", cache)], value);
            }
        }
    }
}
