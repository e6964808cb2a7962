//! The rebalance of a member that joins three others while reads go on, beside the rate of one TCP stream.

use serde_json::Value;

use super::stream;
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::Runs;
use crate::targets::{Rival, Row, Target};
use crate::tools;

/// The part of one TCP stream's rate.
const TARGET: f64 = 0.5;

/// The memory per byte of value, for a million values of 1 KB.
const MEMORY_PER_VALUE: f64 = 1.6;

#[derive(Clone, Copy)]
struct Way {
    /// Invokers of each member that read: one at a time shows the delays of reads, and leaves the CPUs to the
    /// rebalance.
    invokers: u32,
    /// The member takes memory before it joins: a virtual machine's host may have to find it otherwise.
    reserves: bool,
}

const WAYS: [Way; 3] = [
    Way { invokers: 0, reserves: false },
    Way { invokers: 0, reserves: true },
    Way { invokers: 1, reserves: false },
];

pub(crate) fn rebalance(options: &Options, results: &mut Results<'_>) {
    let mut outcome = Outcome::default();
    let (mut streams, mut said) = (Streams::default(), vec![Vec::new(); WAYS.len()]);
    for run in 1..=options.runs() {
        if let Err(error) = once(options, run, &mut streams, &mut said) {
            outcome.failures.push(error);
            break;
        }
        results.keep("rebalance", &serde_json::json!({ "stream_mb_sec": streams.dropped.0, "kept_mb_sec": streams.kept.0, "runs": said }));
    }
    for (way, said) in WAYS.iter().zip(&said) {
        outcome.rows.extend(rows(options, *way, said, &streams));
    }
    report::print_rows(&outcome.rows);
    results.add("rebalance", outcome);
}

#[derive(Default)]
struct Streams {
    dropped: Runs,
    /// Received bytes are kept, as many as the rebalance moves.
    kept: Runs,
}

fn once(options: &Options, run: usize, streams: &mut Streams, said: &mut [Vec<Value>]) -> anyhow::Result<()> {
    streams.dropped.0.push(stream::measure(options.time())?);
    streams.kept.0.push(stream::kept(options.moved_mb())?);
    for (way, said) in WAYS.iter().zip(said) {
        Progress::result(&format!("{}, run {run}", way.subject(options)));
        let mut arguments = vec![
            "rebalance".to_owned(),
            format!("--megabytes={}", options.moved_mb()),
            format!("--invokers={}", way.invokers),
            format!("--time={}", options.time().as_secs_f64()),
            "--json".to_owned(),
        ];
        let reserved = options.moved_mb() as f64 * MEMORY_PER_VALUE;
        arguments.extend(way.reserves.then(|| format!("--reserve={reserved:.0}MB")));
        let figures = tools::grid(&arguments)?;
        Progress::result(&figures.to_string());
        said.push(figures);
    }
    Ok(())
}

impl Way {
    fn subject(self, options: &Options) -> String {
        let mut subject = format!("rebalance, {} MB", options.moved_mb());
        if self.reserves {
            subject += ", memory reserved";
        }
        if self.invokers > 0 {
            subject += &format!(", {} readers per member", self.invokers);
        }
        subject
    }
}

fn rows(options: &Options, way: Way, said: &[Value], streams: &Streams) -> Vec<Row> {
    let subject = way.subject(options);
    let figures = |path: &str| Runs(said.iter().filter_map(|said| said.pointer(path)?.as_f64()).collect());
    let of = |figure: &'static str| (subject.clone(), figure);
    let target = (way.invokers == 0).then_some(Target::AtLeast(TARGET));
    let rate = figures("/mb_sec");
    let mut rows = vec![
        Row::beside(Rival::Sockets, of("MB/s"), &rate, Some(&streams.dropped), target),
        Row::beside(Rival::Sockets, of("MB/s, both kept"), &rate, Some(&streams.kept), None),
    ];
    let more = [
        ("seconds", "/seconds"),
        ("CPU s of all members", "/cpu_s"),
        ("peak MB/member", "/rss_mb"),
        ("p99 us of reads before", "/calm_us/p99"),
        ("p99 us of reads meanwhile", "/meanwhile_us/p99"),
        ("p99.9 us of reads meanwhile", "/meanwhile_us/p99.9"),
    ];
    let more = more.into_iter().map(|(figure, path)| (figure, figures(path)));
    let measured = more.filter(|(_, runs)| !runs.0.is_empty());
    rows.extend(measured.map(|(figure, runs)| Row::alone(of(figure), &runs, None)));
    rows
}
