//! Consort with each of its bundlers: the default has to be the cheapest (S003-5).

use serde::Serialize;

use crate::interleaved::{self, Turn};
use crate::options::Options;
use crate::plan::Load;
use crate::report::{markdown, number};
use crate::results::{Outcome, Results};
use crate::sample::{Runs, Sample, Samples};
use crate::targets::{CPU_PER_CALL, CPU_PER_MESSAGE, Row};
use crate::tools;

const NAME: &str = "bundlers";

/// The default comes first.
const BUNDLERS: [&str; 3] = ["per-destination", "transfer-queue", "no-bundler"];

/// The difference between runs of the same bundler.
const NOISE: f64 = 0.05;

#[derive(Serialize)]
struct Entry {
    load: Load,
    bundler: &'static str,
    consort: Samples,
}

impl Entry {
    fn cost(&self) -> Option<f64> {
        self.runs().median()
    }

    fn runs(&self) -> Runs {
        self.consort.runs(|sample| (sample.rate > 0.0).then_some(sample.cpu_us))
    }

    fn row(&self) -> Row {
        let cost = match self.load {
            Load::Uperf { .. } => CPU_PER_CALL,
            Load::Mperf { .. } => CPU_PER_MESSAGE,
        };
        Row::alone((self.name(), cost), &self.runs(), None)
    }
}

impl Turn for Entry {
    fn name(&self) -> String {
        format!("{}, {}", self.load.name(), self.bundler)
    }

    fn sample(&self, options: &Options) -> anyhow::Result<Sample> {
        let bundler = format!("-Djgroups.bundler.type={}", self.bundler);
        tools::consort(&self.load, options.members, options, &[bundler])
    }

    fn samples(&mut self) -> &mut Samples {
        &mut self.consort
    }
}

pub(crate) fn measure(options: &Options, results: &mut Results<'_>) {
    let mut entries: Vec<Entry> = Vec::new();
    let multicasts = options.configs.iter().map(|config| Load::multicasts(config, options));
    for load in std::iter::once(Load::calls(options)).chain(multicasts) {
        let entry = |bundler| Entry { load: load.clone(), bundler, consort: Samples::default() };
        entries.extend(BUNDLERS.map(entry));
    }
    let measured = interleaved::measure(&mut entries, options);
    let outcome = Outcome {
        rows: entries.iter().map(Entry::row).collect(),
        errors: entries.iter().map(|entry| entry.consort.errors()).sum(),
        is_broken: !print(&entries),
        failures: measured.err().into_iter().collect(),
    };
    results.keep(NAME, &entries);
    results.add(NAME, outcome);
}

fn print(entries: &[Entry]) -> bool {
    let head = ["load", "bundler", "CPU us", "to the default", "spread", "a second and member", "p99.9 us"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let (mut is_best, mut default) = (true, None);
    for entry in entries {
        if entry.bundler == BUNDLERS[0] {
            default = entry.cost();
        }
        let ratio = entry.cost().zip(default).map(|(own, default)| own / default);
        is_best &= ratio.is_none_or(|ratio| ratio >= 1.0 - NOISE);
        let spread = entry.runs().spread();
        table.push(vec![
            entry.load.name(),
            entry.bundler.to_owned(),
            number(entry.cost()),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            spread.map_or_else(String::new, |spread| format!("{spread:.0} %")),
            number(entry.consort.median(|sample| Some(sample.rate))),
            number(entry.consort.median(|sample| Some(sample.latency?.p999))),
        ]);
    }
    println!("\n{}", markdown(&table, 2));
    let verdict = if is_best { "is" } else { "is not" };
    println!("\nthe default {verdict} the cheapest, within {:.0} %", NOISE * 100.0);
    is_best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(costs: [f64; 3]) -> Vec<Entry> {
        let entry = |(bundler, cpu_us)| {
            let sample = Sample { rate: 1.0, cpu_us, latency: None, rss_mb: 1.0, errors: 0 };
            let consort = Samples { warmup: Vec::new(), samples: vec![sample] };
            Entry { load: Load::Uperf { callers: 1, java_threads: None }, bundler, consort }
        };
        BUNDLERS.into_iter().zip(costs).map(entry).collect()
    }

    /// S003-5: a bundler that is cheaper than the default by more than chance is a failure.
    #[test]
    fn a_default_that_is_not_the_cheapest_is_noticed() {
        assert!(print(&entries([10.0, 9.6, 20.0])));
        assert!(!print(&entries([10.0, 9.4, 20.0])));
    }
}
