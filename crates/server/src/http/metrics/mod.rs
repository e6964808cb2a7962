//! The server's metrics, collected for each request.

mod caches;
mod cluster;
mod transactions;

use consort_cache::{MemoryUsage, ProcessMemory};
use consort_memory::Usage;

pub(crate) use self::cluster::StackMetric;

use crate::catalog::caches::Caches;
use crate::http::exposition::{Exposition, Kind};
use crate::http::process;
use crate::limits::COUNTERS_MAX;
use crate::metrics::latency::{BOUNDS, Class};
use crate::security::Security;

/// Returns the metrics and their content type. The caller passes the number of counters, for which it has to ask other servers.
pub(crate) fn render(
    caches: &Caches,
    security: &Security,
    counters: Option<u64>,
    stack: &[StackMetric],
    accept: &str,
) -> (&'static str, String) {
    let mut out = Exposition::for_client(accept);
    let content_type = out.content_type();
    out.family(Kind::Gauge, "consort_build_info", "The version of the server.")
        .value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "Until when the server's certificate is good, since 1970.";
    out.family(Kind::Gauge, "consort_tls_certificate_not_after_seconds", help);
    if let Some(until) = security.certificate_expiry() {
        out.value(&[], until);
    }
    clients(&mut out, caches);
    memory(&mut out, &caches.memory.usages());
    cluster::append(&mut out, caches);
    cluster::append_stack(&mut out, stack);
    caches::append(&mut out, caches);
    transactions::append(&mut out, caches);
    let help = "Counters that are defined in the cluster, removed ones included.";
    out.family(Kind::Gauge, "consort_counters", help);
    if let Some(counters) = counters {
        out.value(&[], counters);
    }
    out.family(Kind::Gauge, "consort_counters_limit", "Counters that may be defined in the cluster.")
        .value(&[], COUNTERS_MAX);
    process_memory(&mut out, caches);
    process::append(&mut out);
    (content_type, out.finish())
}

fn process_memory(out: &mut Exposition, caches: &Caches) {
    let manager = caches.manager();
    out.family(
        Kind::Gauge,
        "consort_process_memory_short_members",
        "Other servers that refuse writes because their memory is short.",
    )
    .value(&[], manager.short_members().len());
    let usage = manager.process_memory().map(ProcessMemory::usage);
    out.family(
        Kind::Gauge,
        "consort_process_memory_limit_bytes",
        "The memory limit of this server, and its source.",
    );
    if let Some(usage) = &usage {
        out.value(&[("of", &usage.limit.of)], usage.limit.bytes);
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
    append_figures(out, &FIGURES, usage.iter().map(|usage| (None, usage)));
}

type Figure<T> = (Kind, &'static str, &'static str, fn(&T) -> u64);

fn append_figures<'a, T: 'a>(
    out: &mut Exposition,
    figures: &[Figure<T>],
    sources: impl Iterator<Item = (Option<(&'static str, &'a str)>, &'a T)> + Clone,
) {
    for (kind, name, help, of) in figures {
        out.family(*kind, name, help);
        for (label, source) in sources.clone() {
            out.value(label.as_slice(), of(source));
        }
    }
}

fn clients(out: &mut Exposition, caches: &Caches) {
    let telemetry = &caches.telemetry;
    let sums = telemetry.sums();
    out.family(Kind::Gauge, "consort_connections", "Clients' connections, this one included.")
        .value(&[], telemetry.connections());
    out.family(Kind::Counter, "consort_connections_accepted", "Connections that were accepted.")
        .value(&[], telemetry.accepted.get());
    out.family(Kind::Counter, "consort_connections_refused", "Connections that were one too many.")
        .value(&[], telemetry.turned_away.get());
    out.family(Kind::Counter, "consort_rejections", "Failed authentications of clients.")
        .value(&[], telemetry.rejections.get());
    out.family(Kind::Counter, "consort_requests", "Requests of Hot Rod clients.");
    for (opcode, count) in sums.requests.iter().filter(|(_, count)| *count > 0) {
        out.value(&[("operation", opcode.name())], count);
    }
    out.family(
        Kind::Histogram,
        "consort_request_duration_seconds",
        "The duration of requests of Hot Rod clients, from the start of the requests that a connection has read to the end of all \
         of them; for requests that wait, to their own end. Reads and writes are of one key.",
    );
    for class in Class::ALL {
        let times = telemetry.times(class);
        let within = BOUNDS.iter().zip(times.buckets).map(|((_, bound), count)| (*bound, count));
        let beyond = times.buckets[BOUNDS.len()];
        let sum = format!("{}.{:09}", times.nanoseconds / 1_000_000_000, times.nanoseconds % 1_000_000_000);
        out.histogram(("class", class.name()), within, beyond, sum);
    }
    out.family(
        Kind::Gauge,
        "consort_requests_in_flight",
        "Requests of Hot Rod clients that have begun and wait for other members, locks or stores.",
    )
    .value(&[], telemetry.waits());
    out.family(
        Kind::Counter,
        "consort_errors",
        "Requests of Hot Rod clients that were answered with an error.",
    )
    .value(&[], sums.errors);
    out.family(Kind::Counter, "consort_received_bytes", "Bytes from Hot Rod clients, without TLS.")
        .value(&[], sums.received);
    out.family(Kind::Counter, "consort_sent_bytes", "Bytes to Hot Rod clients, without TLS.")
        .value(&[], sums.sent);
    out.family(Kind::Counter, "consort_http_requests", "Requests in HTTP, this one included.")
        .value(&[], telemetry.http_requests.get());
}

fn memory(out: &mut Exposition, budgets: &[Usage]) {
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
    append_figures(out, &FIGURES, budgets.iter().map(|budget| (Some(("budget", budget.name)), budget)));
}
