//! Consort alone under a load that grows step by step: the cost of an operation must not grow. Members share
//! the CPUs of one machine, so operations per CPU second are compared, not rates.

use serde::Serialize;

use crate::interleaved::{self, Turn};
use crate::options::Options;
use crate::plan::Load;
use crate::report::{markdown, number};
use crate::results::{Outcome, Results};
use crate::sample::{Runs, Sample, Samples};
use crate::targets::{CPU_PER_CALL, CPU_PER_MESSAGE, Row};
use crate::tools;

/// A step may fall behind the first by this.
const FALL_MAX: f64 = 0.1;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Growing {
    /// Members that call each other (S001-7, S003-16, S003-17).
    Members,
    /// Threads that send to one member through one channel (S003-7).
    Senders,
}

impl Growing {
    const fn steps(self) -> &'static [usize] {
        match self {
            Self::Members => &[3, 4, 5, 6, 7, 8, 9],
            Self::Senders => &[1, 2, 4, 8],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::Senders => "senders",
        }
    }

    const fn operation(self) -> (&'static str, &'static str) {
        match self {
            Self::Members => ("calls", CPU_PER_CALL),
            Self::Senders => ("messages", CPU_PER_MESSAGE),
        }
    }
}

#[derive(Serialize)]
struct Step {
    #[serde(skip)]
    growing: Growing,
    count: usize,
    consort: Samples,
}

impl Step {
    fn per_cpu_second(&self) -> f64 {
        self.consort.median(|sample| Some(sample.cpu_us)).map_or(0.0, |cpu_us| 1e6 / cpu_us)
    }
}

impl Turn for Step {
    fn name(&self) -> String {
        format!("{}: {}", self.growing.name(), self.count)
    }

    fn sample(&self, options: &Options) -> anyhow::Result<Sample> {
        match self.growing {
            Growing::Members => tools::consort(&Load::calls(options), self.count, options, &[]),
            Growing::Senders => tools::senders(self.count, options),
        }
    }

    fn samples(&mut self) -> &mut Samples {
        &mut self.consort
    }
}

#[derive(Serialize)]
struct Series {
    growing: Growing,
    steps: Vec<Step>,
}

pub(crate) fn measure(growing: Growing, options: &Options, results: &mut Results<'_>) {
    let steps = growing.steps().iter().map(|&count| Step { growing, count, consort: Samples::default() });
    let mut series = Series { growing, steps: steps.collect() };
    let measured = interleaved::measure(&mut series.steps, options);
    let outcome = Outcome {
        rows: series.rows().collect(),
        errors: series.steps.iter().map(|step| step.consort.errors()).sum(),
        is_broken: !series.print(),
        failures: measured.err().into_iter().collect(),
    };
    results.keep(growing.name(), &series);
    results.add(growing.name(), outcome);
}

impl Series {
    fn print(&self) -> bool {
        let (operations, cost) = self.growing.operation();
        let first = self.steps.first().map_or(0.0, Step::per_cpu_second);
        let head = [
            self.growing.name(),
            &format!("{operations}/s/member"),
            cost,
            &format!("{operations}/CPU s"),
            "to the first",
            "p99.9 us",
        ];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        let mut stays = true;
        for step in &self.steps {
            let ratio = step.per_cpu_second() / first;
            stays &= ratio >= 1.0 - FALL_MAX;
            table.push(vec![
                step.count.to_string(),
                number(step.consort.median(|sample| Some(sample.rate))),
                number(step.consort.median(|sample| Some(sample.cpu_us))),
                number(Some(step.per_cpu_second())),
                format!("{ratio:.2}"),
                number(step.consort.median(|sample| Some(sample.latency?.p999))),
            ]);
        }
        println!("\n{}", markdown(&table, 1));
        let verdict = if stays { "stays" } else { "does not stay" };
        println!("\nthe rate of a CPU {verdict} within {:.0} %", FALL_MAX * 100.0);
        stays
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        let (_, cost) = self.growing.operation();
        self.steps.iter().map(move |step| {
            let runs: Runs = step.consort.runs(|sample| Some(sample.cpu_us));
            Row::alone((step.name(), cost), &runs, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(steps: &[(usize, f64)]) -> Series {
        let step = |&(count, cpu_us): &(usize, f64)| {
            let sample = Sample { rate: 1.0, cpu_us, latency: None, rss_mb: 1.0, errors: 0 };
            Step {
                growing: Growing::Members,
                count,
                consort: Samples { warmup: Vec::new(), samples: vec![sample] },
            }
        };
        Series { growing: Growing::Members, steps: steps.iter().map(step).collect() }
    }

    /// S001-7, S003-7: a CPU does as much in a large cluster as in a small one, and for many senders as for one.
    #[test]
    fn calls_that_become_dearer_with_members_are_a_failure() {
        assert!(series(&[(3, 10.0), (9, 10.0)]).print());
        assert!(series(&[(3, 10.0), (9, 11.0)]).print());
        assert!(!series(&[(3, 10.0), (9, 12.0)]).print());
    }

    #[test]
    fn every_step_can_be_compared_with_an_earlier_release() {
        let series = series(&[(3, 10.0), (9, 12.0)]);
        let rows: Vec<Row> = series.rows().collect();
        assert_eq!((rows[1].subject.as_str(), rows[1].consort), ("members: 9", Some(12.0)));
        assert!(rows.iter().all(|row| crate::targets::is_cost(row.figure)));
    }
}
