//! What a server tells of itself in numbers. It is collected when it is asked for; nothing here costs clients of caches more
//! than the counts that [`crate::telemetry`] and [`crate::stats`] keep.

use consort_cache::{Availability, Phase, ProcessMemory, StoreHealth, StoreStats};
use consort_memory::Usage;

use crate::bounds::COUNTERS_MAX;
use crate::caches::Caches;
use crate::http::exposition::{Exposition, Kind};
use crate::http::process;
use crate::latency::{BOUNDS, Class};
use crate::security::Security;
use crate::served::Served;
use crate::stats::Stats;

/// A number of a cache, and what it is.
type OfCache = (Kind, &'static str, &'static str, fn(&Caches, &Served) -> Option<u64>);

const OF_CACHES: &[OfCache] = &[
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
    (Kind::Gauge, "consort_cache_members", "Servers that have the cache open.", |_, it| {
        it.look(|topology| topology.members.len() as u64)
    }),
    (
        Kind::Gauge,
        "consort_cache_topology",
        "The topology's number, which grows with every change.",
        |_, it| it.look(|topology| topology.id.into()),
    ),
    (Kind::Gauge, "consort_cache_available", "Whether all of the cache can be used.", |_, it| {
        it.look(|topology| u64::from(topology.availability == Availability::Available))
    }),
    (Kind::Gauge, "consort_cache_rebalancing", "Whether entries are on their way to new owners.", |_, it| {
        it.look(|topology| u64::from(topology.phase != Phase::Stable))
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

fn stat(served: &Served, of: fn(&Stats) -> i64) -> Option<u64> {
    u64::try_from(of(&served.stats)).ok()
}

/// All of it, in the form that a client with this field `Accept` wants, with that form's name. How many counters are defined
/// in the cluster other servers had to be asked for.
pub(crate) fn told(
    caches: &Caches,
    security: &Security,
    counters: Option<u64>,
    accept: &str,
) -> (&'static str, String) {
    let mut told = Exposition::for_client(accept);
    let content_type = told.content_type();
    told.family(Kind::Gauge, "consort_build_info", "The version of the server.")
        .value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(until) = security.certificate_good_until() {
        let help = "Until when the server's certificate is good, since 1970.";
        told.family(Kind::Gauge, "consort_tls_certificate_not_after_seconds", help).value(&[], until);
    }
    clients(&mut told, caches);
    memory(&mut told, &caches.memory.usages());
    cluster(&mut told, caches);
    let all = caches.all();
    for (kind, name, help, of) in OF_CACHES {
        told.family(*kind, name, help);
        for (cache, served) in &all {
            if let Some(value) = of(caches, served) {
                told.value(&[("cache", cache)], value);
            }
        }
    }
    stores(&mut told, caches);
    let help = "Whether the cache is defined and could not be opened on this server.";
    told.family(Kind::Gauge, "consort_cache_failed", help);
    for (cache, _) in &all {
        told.value(&[("cache", cache)], 0);
    }
    for (cache, _) in caches.failed.all() {
        told.value(&[("cache", &cache)], 1);
    }
    if let Some(counters) = counters {
        let help = "Counters that are defined in the cluster, removed ones included.";
        told.family(Kind::Gauge, "consort_counters", help).value(&[], counters);
    }
    told.family(Kind::Gauge, "consort_counters_limit", "Counters that may be defined in the cluster.")
        .value(&[], COUNTERS_MAX);
    process_memory(&mut told, caches);
    process::tell(&mut told);
    (content_type, told.finish())
}

/// A number of a cache's store, and what it is.
type OfStore = (Kind, &'static str, &'static str, fn(&StoreStats, &StoreHealth) -> Option<u64>);

const OF_STORES: &[OfStore] = &[
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

/// The stores of caches, those of the servers' own included.
fn stores(told: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    let all: Vec<(String, StoreStats, StoreHealth)> = caches
        .with_stores()
        .into_iter()
        .filter_map(|name| {
            let (stats, health) = (manager.store_stats(&name)?, manager.store_health(&name)?);
            Some((name, stats, health))
        })
        .collect();
    for (kind, name, help, of) in OF_STORES {
        told.family(*kind, name, help);
        for (cache, stats, health) in &all {
            if let Some(value) = of(stats, health) {
                told.value(&[("cache", cache)], value);
            }
        }
    }
}

fn process_memory(told: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    told.family(
        Kind::Gauge,
        "consort_process_memory_short_members",
        "Other servers that refuse writes because their memory is short.",
    )
    .value(&[], manager.short_members().len());
    let Some(usage) = manager.process_memory().map(ProcessMemory::usage) else { return };
    told.family(
        Kind::Gauge,
        "consort_process_memory_limit_bytes",
        "The memory that this server may use, and what sets that.",
    )
    .value(&[("of", &usage.limit.of)], usage.limit.bytes);
    for (kind, name, help, value) in [
        (
            Kind::Gauge,
            "consort_process_memory_high_water_mark_bytes",
            "The use of memory above which writes that add entries are refused.",
            usage.high_water_mark,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_used_bytes",
            "The memory in use, as the limit counts it.",
            usage.used,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_entries_bytes",
            "Bytes of this that entries of all caches take.",
            usage.entries,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_short",
            "Whether writes that add entries are refused now.",
            u64::from(usage.is_short),
        ),
        (
            Kind::Counter,
            "consort_process_memory_shortages",
            "How often memory has become short.",
            usage.shortages,
        ),
        (
            Kind::Counter,
            "consort_process_memory_refused_writes",
            "Writes that were refused for lack of memory.",
            usage.refused,
        ),
    ] {
        told.family(kind, name, help).value(&[], value);
    }
}

fn clients(told: &mut Exposition, caches: &Caches) {
    let telemetry = &caches.telemetry;
    let sums = telemetry.sums();
    told.family(Kind::Gauge, "consort_connections", "Clients' connections, this one included.")
        .value(&[], telemetry.connections());
    told.family(Kind::Counter, "consort_connections_accepted", "Connections that were accepted.")
        .value(&[], telemetry.accepted.get());
    told.family(Kind::Counter, "consort_connections_refused", "Connections that were one too many.")
        .value(&[], telemetry.turned_away.get());
    told.family(Kind::Counter, "consort_rejections", "Times that a client has not shown who it is.")
        .value(&[], telemetry.rejections.get());
    told.family(Kind::Counter, "consort_requests", "Requests of Hot Rod clients.");
    for (opcode, count) in sums.requests.iter().filter(|(_, count)| *count > 0) {
        told.value(&[("operation", opcode.name())], count);
    }
    told.family(
        Kind::Histogram,
        "consort_request_duration_seconds",
        "How long requests of Hot Rod clients take: from when a connection begins with what it has read until all of that \
         is answered and ready to be written; for what has to wait, until it is itself. Reads and writes are of one key.",
    );
    for class in Class::ALL {
        let times = telemetry.times(class);
        let within = BOUNDS.iter().zip(times.buckets).map(|((_, bound), count)| (*bound, count));
        let beyond = times.buckets[BOUNDS.len()];
        let sum = format!("{}.{:09}", times.nanoseconds / 1_000_000_000, times.nanoseconds % 1_000_000_000);
        told.histogram(("class", class.name()), within, beyond, sum);
    }
    told.family(
        Kind::Counter,
        "consort_errors",
        "Requests of Hot Rod clients that were answered with an error.",
    )
    .value(&[], sums.errors);
    told.family(Kind::Counter, "consort_received_bytes", "Bytes from Hot Rod clients, without TLS.")
        .value(&[], sums.received);
    told.family(Kind::Counter, "consort_sent_bytes", "Bytes to Hot Rod clients, without TLS.")
        .value(&[], sums.sent);
    told.family(Kind::Counter, "consort_http_requests", "Requests in HTTP, this one included.")
        .value(&[], telemetry.http_requests.get());
}

/// The budgets of bytes ([`crate::memory`]).
fn memory(told: &mut Exposition, budgets: &[Usage]) {
    type Figure = (Kind, &'static str, &'static str, fn(&Usage) -> u64);
    const FIGURES: [Figure; 4] = [
        (Kind::Gauge, "consort_memory_used_bytes", "Bytes of a budget that are in use.", |it| it.used),
        (Kind::Gauge, "consort_memory_limit_bytes", "Bytes of a budget that may be in use.", |it| it.limit),
        (
            Kind::Gauge,
            "consort_memory_peak_bytes",
            "The most bytes of a budget that were in use at the same time since the start.",
            |it| it.peak,
        ),
        (
            Kind::Counter,
            "consort_memory_refused",
            "Requests and connections that were refused because a budget had no room.",
            |it| it.refused,
        ),
    ];
    for (kind, name, help, of) in FIGURES {
        told.family(kind, name, help);
        for budget in budgets {
            told.value(&[("budget", budget.name)], of(budget));
        }
    }
}

fn cluster(told: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    if let Some(view) = manager.view() {
        let is_first = view.coordinator() == Some(manager.address());
        told.family(Kind::Gauge, "consort_cluster_members", "Members of the cluster.").value(&[], view.len());
        let help = "Members that have missed heartbeats and are not suspected yet.";
        told.family(Kind::Gauge, "consort_cluster_silent_members", help).value(&[], manager.silent().len());
        told.family(Kind::Gauge, "consort_cluster_view", "The view's number.").value(&[], view.id().id);
        told.family(
            Kind::Gauge,
            "consort_cluster_coordinator",
            "Whether this server is the cluster's coordinator.",
        )
        .value(&[], u8::from(is_first));
    }
    let traffic = manager.traffic();
    for (name, help, value) in [
        ("consort_cluster_sent_messages", "Messages to other members.", traffic.messages_sent),
        ("consort_cluster_sent_bytes", "Bytes of messages to other members.", traffic.bytes_sent),
        ("consort_cluster_received_messages", "Messages from other members.", traffic.messages_received),
        ("consort_cluster_received_bytes", "Bytes of messages from other members.", traffic.bytes_received),
    ] {
        told.family(Kind::Counter, name, help).value(&[], value);
    }
    let unusual = manager.counters();
    told.family(
        Kind::Counter,
        "consort_cluster_unusual",
        "Commands of members that did not go their usual way.",
    );
    for (what, count) in [
        ("deferred", unusual.deferred),
        ("overflowed", unusual.overflowed),
        ("repeated", unusual.repeated),
        ("outdated", unusual.outdated),
        ("malformed", unusual.malformed),
        ("unknown", unusual.unknown),
        ("adopted", unusual.adopted),
        ("unsaved", unusual.unsaved),
    ] {
        told.value(&[("what", what)], count);
    }
}
