//! The same Java client calls our server and Infinispan's in turn; then our client calls ours.

use serde::Serialize;

use super::java_client::JavaClient;
use super::redis::{self, Redis};
use super::server_process::ServerProcess;
use super::{
    CLIENT_CPU_US, MEMORY, P50, P99, P999, PORT, Pairs, RATE, READS, SERVER_CPU_US, SIZE, SYSTEM_CPU_US,
    own_client,
};
use crate::java::{self, Jdk};
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::{Runs, Samples};
use crate::session::{CONSORT_OVERHEAD, shown};
use crate::targets::{Rival, Row, SERVER_CPU, SYSTEM_CPU, Target};
use crate::tools;

const OTHER_PORT: u16 = PORT + 300;

/// Several callers share the cost of waking Infinispan's server.
const CPU_TARGET: f64 = 1.0 / 2.5;

/// A request's CPU beside a bare socket's server, which each request wakes.
const SOCKET_TARGET: f64 = 1.3;

const P999_TARGET: f64 = 1.0 / 3.0;
const MEMORY_TARGET: f64 = 0.1;

/// Until clients can connect.
const START_TARGET_MS: f64 = 100.0;

/// Its files are in memory after the first start.
const STARTS: usize = 5;

/// Our client's time beside Java's.
const CLIENT_TARGET: f64 = 1.0 / 3.0;

#[derive(Default, Serialize)]
struct Point {
    callers: usize,
    java: Pairs,
    infinispan: Pairs,
    /// The same sizes over a bare socket, for one caller.
    sockets: Pairs,
    own: Pairs,
    redis: Samples,
}

#[derive(Serialize)]
struct Record {
    java_client: Option<String>,
    redis: Option<String>,
    starts: Starts,
    points: Vec<Point>,
}

#[derive(Default, Serialize)]
struct Starts {
    ours: Vec<f64>,
    infinispan: Vec<f64>,
}

impl Starts {
    fn rows(&self) -> [Row; 2] {
        let (ours, theirs) = (Runs(self.ours.clone()), Runs(self.infinispan.clone()));
        let of = || ("server starts".to_owned(), "ms");
        [
            Row::alone(of(), &ours, Some(Target::AtMost(START_TARGET_MS))),
            Row::beside(Rival::Infinispan, of(), &ours, Some(&theirs), None),
        ]
    }
}

struct Java {
    ours: JavaClient,
    theirs: JavaClient,
    infinispan: ServerProcess,
}

impl Java {
    fn start(consort: &ServerProcess, options: &Options) -> anyhow::Result<Self> {
        // Found where the parent process has put it.
        let (server, classpath) = super::prepare()?;
        let jdk: Jdk = java::find()?;
        Progress::result(&format!("Infinispan's server starts on the JDK {}", jdk.version));
        let infinispan = ServerProcess::infinispan(&server, &jdk, &options.java_heap, OTHER_PORT)?;
        let ours = JavaClient::start((server.directory(), &classpath), &jdk, consort, options)?;
        let theirs = JavaClient::start((server.directory(), &classpath), &jdk, &infinispan, options)?;
        Progress::result(&ours.version);
        Ok(Self { ours, theirs, infinispan })
    }
}

pub(crate) fn server(options: &Options, results: &mut Results<'_>) {
    let version = redis::version();
    if version.is_none() {
        eprintln!("bench: redis-server and redis-benchmark are not installed, and not measured");
    }
    let mut record =
        Record { java_client: None, redis: version, starts: Starts::default(), points: Vec::new() };
    let mut outcome = Outcome::default();
    let measured = all(options, &mut record, |record| results.keep("server", record));
    outcome.failures.extend(measured.err());
    outcome.rows.extend(record.starts.rows());
    for point in &record.points {
        let pairs = [&point.java, &point.infinispan, &point.sockets, &point.own];
        outcome.errors += pairs.into_iter().map(Pairs::errors).sum::<u64>();
        outcome.rows.extend(point.rows());
    }
    report::print_rows(&outcome.rows);
    results.add("server", outcome);
}

fn all(options: &Options, record: &mut Record, mut keep: impl FnMut(&Record)) -> anyhow::Result<()> {
    let most = options.hotrod_callers.iter().max().copied().unwrap_or_default();
    let mut progress = Progress::new(planned(options) * options.hotrod_callers.len() as u32);
    for _ in 0..STARTS {
        record.starts.ours.push(ServerProcess::consort()?.start.as_secs_f64() * 1e3);
    }
    let consort = ServerProcess::consort()?;
    let mut java = options.needs_java_servers().then(|| Java::start(&consort, options)).transpose()?;
    record.java_client = java.as_ref().map(|java| java.ours.version.clone());
    record.starts.infinispan.extend(java.as_ref().map(|java| java.infinispan.start.as_secs_f64() * 1e3));
    for &callers in &options.hotrod_callers {
        let mut point = Point { callers, ..Point::default() };
        let measured =
            java.as_mut().map_or(Ok(()), |java| java_client(java, &mut point, &mut progress, options));
        record.points.push(point);
        keep(record);
        measured?;
        progress.finish(planned(options));
    }
    drop(java);
    drop(consort);
    // A fresh server, so that its memory is that of these callers.
    let consort = ServerProcess::consort()?;
    let redis = record.redis.is_some().then(Redis::start).transpose()?;
    for run in 1..=options.runs() {
        for point in &mut record.points {
            Progress::result(&format!("our client, {} callers, run {run}", point.callers));
            point.own.push(own_client(&consort, point.callers, options)?);
        }
        if let (Some(redis), Some(point)) =
            (&redis, record.points.iter_mut().find(|point| point.callers == most))
        {
            Progress::result(&format!("redis-server, run {run}"));
            point.redis.samples.push(shown(redis.run(options)?));
        }
    }
    keep(record);
    Ok(())
}

fn java_client(
    java: &mut Java,
    point: &mut Point,
    progress: &mut Progress,
    options: &Options,
) -> anyhow::Result<()> {
    let threads = point.callers;
    if !options.quick {
        progress.step(&format!("{threads} threads warm up, Infinispan's server"));
        point.infinispan.warmup = java.theirs.warm_up(threads, options)?;
        progress.step(&format!("{threads} threads warm up, our server"));
        point.java.warmup = java.ours.warm_up(threads, options)?;
    }
    for run in 1..=options.runs() {
        progress
            .step(&format!("{threads} threads, run {run} of {}: our server, Infinispan's", options.runs()));
        point.java.push(java.ours.run(threads, options)?);
        point.infinispan.push(java.theirs.run(threads, options)?);
        if threads == 1 {
            Progress::result("a bare socket");
            point.sockets.push(tools::ping_pong(SIZE, READS, options)?);
        }
    }
    Ok(())
}

fn planned(options: &Options) -> std::time::Duration {
    let sample = options.lead() + options.time();
    let warmup = if options.quick { 0.0 } else { options.java_warmup };
    (sample * 4 + CONSORT_OVERHEAD) * options.runs() as u32 + std::time::Duration::from_secs_f64(warmup)
}

impl Point {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let (one, callers) = (self.callers == 1, self.callers);
        let threads = if one { "thread" } else { "threads" };
        let java = format!("Java client, {callers} {threads}");
        let at_most = |bound| Some(Target::AtMost(bound));
        if !self.java.samples.is_empty() {
            let cpu = (!one).then_some(Target::AtMost(CPU_TARGET));
            for (figure, of, target) in [
                (SERVER_CPU, SERVER_CPU_US, cpu),
                ("p50 us", P50, None),
                ("p99 us", P99, None),
                ("p99.9 us", P999, at_most(P999_TARGET)),
                ("peak MB", MEMORY, at_most(MEMORY_TARGET)),
                ("requests/s", RATE, None),
                ("client CPU us/request", CLIENT_CPU_US, None),
            ] {
                let (ours, theirs) = (self.java.runs(of), self.infinispan.runs(of));
                rows.push(Row::beside(
                    Rival::Infinispan,
                    (java.clone(), figure),
                    &ours,
                    Some(&theirs),
                    target,
                ));
            }
        }
        if !self.sockets.samples.is_empty() {
            for (figure, of, target) in [
                (SERVER_CPU, SERVER_CPU_US, at_most(SOCKET_TARGET)),
                ("p50 us", P50, None),
                ("requests/s", RATE, None),
            ] {
                let (ours, theirs) = (self.java.runs(of), self.sockets.runs(of));
                rows.push(Row::beside(Rival::Sockets, (java.clone(), figure), &ours, Some(&theirs), target));
            }
        }
        let own = format!("our client, {callers} {}", if one { "caller" } else { "callers" });
        let system = (callers >= 100).then_some(Target::AtMost(CLIENT_TARGET));
        for (figure, of, target) in [
            (SYSTEM_CPU, SYSTEM_CPU_US, system),
            (SERVER_CPU, SERVER_CPU_US, None),
            ("requests/s", RATE, None),
            ("p50 us", P50, None),
            ("p99 us", P99, None),
            ("p99.9 us", P999, None),
            ("peak MB", MEMORY, None),
        ] {
            let (ours, javas) = (self.own.runs(of), self.java.runs(of));
            rows.push(Row::beside(Rival::JavaClient, (own.clone(), figure), &ours, Some(&javas), target));
        }
        if !self.redis.samples.is_empty() {
            let (ours, theirs) =
                (self.own.runs(SERVER_CPU_US), self.redis.runs(|sample| Some(sample.cpu_us)));
            rows.push(Row::beside(
                Rival::Redis,
                (own.clone(), SERVER_CPU),
                &ours,
                Some(&theirs),
                at_most(1.0),
            ));
            let (ours, theirs) = (self.own.runs(RATE), self.redis.runs(|sample| Some(sample.rate)));
            rows.push(Row::beside(Rival::Redis, (own, "requests/s"), &ours, Some(&theirs), None));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Both, Latency, Sample};

    fn pairs(cpu_us: f64, client_cpu_us: f64, p999: f64, rss_mb: f64) -> Pairs {
        let latency = Some(Latency { p50: 1.0, p99: 2.0, p999 });
        let server = Sample { rate: 1.0, cpu_us, latency, rss_mb, errors: 0 };
        Pairs { warmup: Vec::new(), samples: vec![Both { server, client_cpu_us }] }
    }

    fn met(rows: &[Row]) -> Vec<(&'static str, bool)> {
        rows.iter().filter_map(|row| Some((row.figure, row.is_met()?))).collect()
    }

    #[test]
    fn several_threads_are_held_against_infinispan_and_the_own_client_against_javas_and_redis() {
        let redis = Sample { rate: 1.0, cpu_us: 1.9, latency: None, rss_mb: 1.0, errors: 0 };
        let point = Point {
            callers: 100,
            java: pairs(2.0, 10.0, 100.0, 40.0),
            infinispan: pairs(5.0, 10.0, 200.0, 800.0),
            own: pairs(2.0, 2.0, 1.0, 1.0),
            redis: Samples { warmup: Vec::new(), samples: vec![redis] },
            ..Point::default()
        };
        let wanted = [
            (SERVER_CPU, true),
            ("p99.9 us", false),
            ("peak MB", true),
            (SYSTEM_CPU, true),
            (SERVER_CPU, false),
        ];
        assert_eq!(met(&point.rows()), wanted);
    }

    #[test]
    fn one_thread_is_held_against_a_bare_socket() {
        let point = Point {
            callers: 1,
            java: pairs(13.0, 10.0, 1.0, 1.0),
            infinispan: pairs(14.0, 10.0, 9.0, 99.0),
            sockets: pairs(10.0, 10.0, 1.0, 1.0),
            ..Point::default()
        };
        assert_eq!(met(&point.rows()), [("p99.9 us", true), ("peak MB", true), (SERVER_CPU, true)]);
    }
}
