//! Iterating over all entries from one of three members, beside Infinispan (S004-12 to S004-14, S004-19).

use consort_testbed::{Jar, JavaGrid};

use super::contest::{CPU, Compared, Contest, MEMORY, RATE, comparison_table};
use super::{populate, start};
use crate::java::JavaCluster;
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::{Runs, Sample};
use crate::session::shown;
use crate::targets::{CPU_PER_ENTRY, Row, Target};
use crate::tools;

const MEMBERS: usize = 3;

const WAYS: [&str; 3] = ["parallel", "sequential", "at-most-once"];

/// The limit of exactly-once's cost beside at-most-once (S004-14).
const EXACTLY_ONCE: f64 = 1.32;

/// Named as by `consort iterate`, and as in the table.
const TAKES: [(&str, &str); 3] =
    [("entries", ""), ("bytes", ", where they lie"), ("answers", ", whole answers")];

#[derive(Clone, Copy, PartialEq)]
struct Case {
    size: usize,
    way: &'static str,
    batch: usize,
    take: &'static str,
}

impl Case {
    fn name(self) -> String {
        let Self { size, way, batch, take } = self;
        let label = TAKES.iter().find(|(name, _)| *name == take).map_or("", |(_, label)| label);
        format!("iterate, {size} B, {way}, batch {batch}{label}")
    }

    /// The first reader is compared with Infinispan's iterator.
    fn is_first_take(self) -> bool {
        self.take == TAKES[0].0
    }
}

fn cases(options: &Options, size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for way in WAYS {
        for &batch in &options.batches {
            // The cost of exactly-once is measured entry by entry.
            let takes = if way == WAYS[2] { &TAKES[..2] } else { &TAKES };
            cases.extend(takes.iter().map(|&(take, _)| Case { size, way, batch, take }));
        }
    }
    cases
}

/// Small entries are bounded by the cost of each, larger ones by their bytes.
fn figures(size: usize) -> [Compared; 3] {
    let rate = if size < 1_000 { 4.0 } else { 2.0 };
    [
        Compared::gain("entries/s", RATE, Some(Target::AtLeast(rate))),
        Compared::cost(CPU_PER_ENTRY, CPU, Some(Target::AtMost(1.0 / 3.0))),
        Compared::cost("peak MB/member", MEMORY, None),
    ]
}

pub(crate) fn iterate(options: &Options, jar: Option<&Jar>, results: &mut Results<'_>) {
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    let measured = measure(options, jar.filter(|_| options.needs_java_grids()), |cases, contests| {
        for (case, contest) in cases.iter().zip(&contests) {
            outcome.errors += contest.errors();
            outcome.rows.extend(contest.rows(&figures(case.size)));
        }
        outcome.rows.extend(costs(cases, &contests));
        all.extend(contests);
        results.keep("iterate", &all);
    });
    outcome.failures.extend(measured.err());
    println!("\n{}", comparison_table(&all, &figures(100)));
    report::print_rows(&outcome.rows);
    results.add("iterate", outcome);
}

fn measure(
    options: &Options,
    jar: Option<&Jar>,
    mut keep: impl FnMut(&[Case], Vec<Contest>),
) -> anyhow::Result<()> {
    let mut cluster = jar.map(|jar| start(JavaGrid::Infinispan, MEMBERS, jar, options)).transpose()?;
    if let Some(cluster) = &cluster {
        Progress::result(&cluster.version);
    }
    for &size in &options.entry_sizes {
        let cases = cases(options, size);
        let others = || cluster.iter().map(|_| "Infinispan".to_owned());
        let mut contests: Vec<Contest> =
            cases.iter().map(|case| Contest::new(case.name(), others())).collect();
        if let Some(cluster) = &mut cluster {
            Progress::result(&format!("entries of {size} B: Infinispan warms up"));
            populate(cluster, options.keys, size)?;
            let warmup = options.java_warmup * if options.quick { 0.01 } else { 0.6 };
            let alone: Vec<Case> = cases.iter().copied().filter(|case| case.is_first_take()).collect();
            for case in &alone {
                infinispan(cluster, *case, warmup / alone.len() as f64)?;
            }
        }
        for run in 1..=options.runs() {
            Progress::result(&format!("entries of {size} B, run {run} of {}", options.runs()));
            let mut beside = None;
            for (case, contest) in cases.iter().zip(&mut contests) {
                Progress::result(&contest.subject);
                contest.consort.samples.push(shown(consort(*case, options)?));
                if let (Some(cluster), true) = (&mut cluster, case.is_first_take()) {
                    beside = Some(shown(infinispan(cluster, *case, options.time().as_secs_f64())?));
                }
                let other = contest.others.first_mut();
                other.into_iter().for_each(|other| other.samples.samples.extend(beside.clone()));
            }
        }
        keep(&cases, contests);
    }
    Ok(())
}

fn consort(case: Case, options: &Options) -> anyhow::Result<Sample> {
    let report = tools::grid(&[
        "iterate".to_owned(),
        format!("--members={MEMBERS}"),
        format!("--entries={}", options.keys),
        format!("--sizes={}", case.size),
        format!("--batches={}", case.batch),
        format!("--ways={}", case.way),
        format!("--takes={}", case.take),
        format!("--time={}", options.time().as_secs_f64()),
        "--json".to_owned(),
    ])?;
    let point = &report["points"][0];
    let number = |name: &str| {
        point[name].as_f64().ok_or_else(|| anyhow::anyhow!("no {name} in the output of `consort iterate`"))
    };
    Ok(Sample {
        rate: number("entries_sec")?,
        cpu_us: number("cpu_us")?,
        latency: None,
        rss_mb: number("rss_mb")?,
        errors: report["errors"].as_u64().unwrap_or(1),
    })
}

fn infinispan(cluster: &mut JavaCluster, case: Case, seconds: f64) -> anyhow::Result<Sample> {
    let before = cluster.cpu_s();
    let line = format!("iterate way={} batch={} time_ms={:.0}", case.way, case.batch, seconds * 1e3);
    let answer = cluster.ask_first(&line)?;
    let number = |name: &str| answer[name].as_f64().unwrap_or_default();
    let entries = number("entries");
    anyhow::ensure!(entries > 0.0, "nothing was gone through: {answer}");
    Ok(Sample {
        rate: entries / number("seconds"),
        cpu_us: (cluster.cpu_s() - before) * 1e6 / entries,
        latency: None,
        rss_mb: cluster.peak_memory_mb(),
        errors: u64::from(number("bytes") != entries * case.size as f64),
    })
}

fn costs(cases: &[Case], contests: &[Contest]) -> Vec<Row> {
    let of = |wanted: Case| {
        let nth = cases.iter().position(|case| *case == wanted)?;
        Some(&contests[nth].consort)
    };
    let mut rows = Vec::new();
    for case in cases.iter().filter(|case| case.way != WAYS[2] && case.is_first_take()) {
        let Some(usual) = of(*case) else { continue };
        let takes = [
            (Case { take: TAKES[1].0, ..*case }, "where they lie, of the rate of those that are kept", None),
            (Case { take: TAKES[2].0, ..*case }, "whole answers, of entry by entry's rate", None),
        ];
        let others = [
            (Case { way: WAYS[1], ..*case }, "parallel, of sequential's rate", None),
            (
                Case { way: WAYS[2], ..*case },
                "at most once, of exactly once's rate",
                Some(Target::AtMost(EXACTLY_ONCE)),
            ),
        ];
        let others = others.into_iter().filter(|_| case.way == WAYS[0]);
        for (other, figure, target) in others.chain(takes) {
            let is_slower = other.way == WAYS[1] && case.way == WAYS[0];
            let Some(other) = of(other) else { continue };
            let (mut one, mut two) = (other.runs(RATE), usual.runs(RATE));
            if is_slower {
                std::mem::swap(&mut one, &mut two);
            }
            let ratios = one.0.iter().zip(&two.0).map(|(one, two)| one / two).collect();
            rows.push(Row::alone((case.name(), figure), &Runs(ratios), target));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sample::Samples;

    fn contest(case: Case, rate: f64) -> Contest {
        let mut contest = Contest::new(case.name(), []);
        let sample = Sample { rate, cpu_us: 1.0, latency: None, rss_mb: 1.0, errors: 0 };
        contest.consort = Samples { warmup: Vec::new(), samples: vec![sample] };
        contest
    }

    /// S004-13, S004-14, S004-19
    #[test]
    fn ways_are_compared_with_the_usual_one() {
        let options = Options::parse_from(["bench", "--batches=512"]);
        let cases = cases(&options, 100);
        let rates = [100.0, 105.0, 110.0, 80.0, 90.0, 120.0, 140.0, 150.0];
        let contests: Vec<Contest> =
            cases.iter().zip(rates).map(|(case, rate)| contest(*case, rate)).collect();
        let rows = costs(&cases, &contests);
        let found: Vec<(f64, Option<bool>)> =
            rows.iter().map(|row| (row.consort.unwrap(), row.met)).collect();
        let parallel = [(1.25, None), (1.4, Some(false)), (1.05, None), (1.1, None)];
        assert_eq!(found[..4], parallel);
        assert_eq!(found[4..], [(1.125, None), (1.5, None)]);
    }

    #[test]
    fn names_of_combinations_differ() {
        let options = Options::parse_from(["bench"]);
        let names: std::collections::BTreeSet<String> =
            [100, 1_000].iter().flat_map(|size| cases(&options, *size)).map(Case::name).collect();
        assert_eq!(names.len(), 2 * 16);
    }
}
