//! What a server tells of itself in numbers. It is collected when it is asked for; nothing here costs clients of caches more
//! than the counts that [`crate::telemetry`] and [`crate::stats`] keep.

mod cluster;
mod of_caches;
mod transactions;

use consort_cache::{MemoryUsage, ProcessMemory};
use consort_memory::Usage;

pub(crate) use self::cluster::OfStack;

use crate::bounds::COUNTERS_MAX;
use crate::caches::Caches;
use crate::http::exposition::{Exposition, Kind};
use crate::http::process;
use crate::latency::{BOUNDS, Class};
use crate::security::Security;

/// All of it, in the form that a client with this field `Accept` wants, with that form's name. How many counters are defined
/// in the cluster other servers had to be asked for.
pub(crate) fn told(
    caches: &Caches,
    security: &Security,
    counters: Option<u64>,
    stack: &[OfStack],
    accept: &str,
) -> (&'static str, String) {
    let mut told = Exposition::for_client(accept);
    let content_type = told.content_type();
    told.family(Kind::Gauge, "consort_build_info", "The version of the server.")
        .value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "Until when the server's certificate is good, since 1970.";
    told.family(Kind::Gauge, "consort_tls_certificate_not_after_seconds", help);
    if let Some(until) = security.certificate_good_until() {
        told.value(&[], until);
    }
    clients(&mut told, caches);
    memory(&mut told, &caches.memory.usages());
    cluster::tell(&mut told, caches);
    cluster::tell_stack(&mut told, stack);
    of_caches::tell(&mut told, caches);
    transactions::tell(&mut told, caches);
    let help = "Counters that are defined in the cluster, removed ones included.";
    told.family(Kind::Gauge, "consort_counters", help);
    if let Some(counters) = counters {
        told.value(&[], counters);
    }
    told.family(Kind::Gauge, "consort_counters_limit", "Counters that may be defined in the cluster.")
        .value(&[], COUNTERS_MAX);
    process_memory(&mut told, caches);
    process::tell(&mut told);
    (content_type, told.finish())
}

fn process_memory(told: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    told.family(
        Kind::Gauge,
        "consort_process_memory_short_members",
        "Other servers that refuse writes because their memory is short.",
    )
    .value(&[], manager.short_members().len());
    let usage = manager.process_memory().map(ProcessMemory::usage);
    told.family(
        Kind::Gauge,
        "consort_process_memory_limit_bytes",
        "The memory that this server may use, and what sets that.",
    );
    if let Some(usage) = &usage {
        told.value(&[("of", &usage.limit.of)], usage.limit.bytes);
    }
    const FIGURES: [Figure<MemoryUsage>; 6] = [
        (
            Kind::Gauge,
            "consort_process_memory_high_water_mark_bytes",
            "The use of memory above which writes that add entries are refused.",
            |usage| usage.high_water_mark,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_used_bytes",
            "The memory in use, as the limit counts it.",
            |usage| usage.used,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_entries_bytes",
            "Bytes of this that entries of all caches take.",
            |usage| usage.entries,
        ),
        (
            Kind::Gauge,
            "consort_process_memory_short",
            "Whether writes that add entries are refused now.",
            |usage| u64::from(usage.is_short),
        ),
        (Kind::Counter, "consort_process_memory_shortages", "How often memory has become short.", |usage| {
            usage.shortages
        }),
        (
            Kind::Counter,
            "consort_process_memory_refused_writes",
            "Writes that were refused for lack of memory.",
            |usage| usage.refused,
        ),
    ];
    tell_figures(told, &FIGURES, usage.iter().map(|usage| (None, usage)));
}

/// A figure of something: its kind, name and help, and how it is read.
type Figure<T> = (Kind, &'static str, &'static str, fn(&T) -> u64);

/// A family for each figure, with a value for each source: its label, and where the figure is read.
fn tell_figures<'a, T: 'a>(
    told: &mut Exposition,
    figures: &[Figure<T>],
    sources: impl Iterator<Item = (Option<(&'static str, &'a str)>, &'a T)> + Clone,
) {
    for (kind, name, help, of) in figures {
        told.family(*kind, name, help);
        for (label, source) in sources.clone() {
            told.value(label.as_slice(), of(source));
        }
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
        Kind::Gauge,
        "consort_requests_in_flight",
        "Requests of Hot Rod clients that have begun and wait for other members, locks or stores.",
    )
    .value(&[], telemetry.waits());
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
    const FIGURES: [Figure<Usage>; 4] = [
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
    tell_figures(told, &FIGURES, budgets.iter().map(|budget| (Some(("budget", budget.name)), budget)));
}
