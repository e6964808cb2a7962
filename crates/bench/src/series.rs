//! Consort alone in clusters of three to nine members: calls must not become dearer as members are added (S001-7,
//! S003-16, S003-17).

use serde::Serialize;

use crate::options::Options;
use crate::progress::Progress;
use crate::report::{markdown, number};
use crate::sample::Samples;
use crate::tools;

/// The sizes of the clusters.
const MEMBERS: std::ops::RangeInclusive<usize> = 3..=9;

/// How far the calls per CPU second may fall behind the smallest cluster: members that share the CPUs of one machine
/// cannot keep their rates, but what a CPU does can stay.
const FALL_MAX: f64 = 0.1;

/// One size of cluster.
#[derive(Serialize)]
pub(crate) struct Step {
    members: usize,
    consort: Samples,
}

impl Step {
    /// Calls for a second of CPU time, of all members together.
    fn per_cpu_second(&self) -> f64 {
        self.consort.median(|sample| Some(sample.cpu_us)).map_or(0.0, |cpu_us| 1e6 / cpu_us)
    }
}

/// Measures every size in turn, `runs` times.
pub(crate) fn measure(options: &Options) -> anyhow::Result<Vec<Step>> {
    let callers = options.callers.first().copied().unwrap_or(25);
    let mut steps: Vec<Step> = MEMBERS.map(|members| Step { members, consort: Samples::default() }).collect();
    let planned = options.time() + options.lead() + crate::session::CONSORT_OVERHEAD;
    let mut progress = Progress::new(planned * (steps.len() * options.runs()) as u32);
    for run in 1..=options.runs() {
        for step in &mut steps {
            progress.step(&format!("uperf, {} members, {callers} callers, run {run}", step.members));
            let sample = tools::consort_uperf(&[
                format!("--members={}", step.members),
                format!("--threads={callers}"),
                format!("--oob={}", options.oob),
                format!("--time={}", options.time().as_secs_f64()),
                format!("--warmup={}", options.lead().as_secs_f64()),
            ])?;
            step.consort.samples.push(crate::session::shown(sample));
            progress.finish(planned);
        }
    }
    Ok(steps)
}

/// Prints the series, and says whether no call failed and a CPU does as much in every cluster.
pub(crate) fn print(steps: &[Step]) -> bool {
    let head = ["members", "calls/s/member", "CPU us/call", "calls/CPU s", "to 3 members", "p99.9 us"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let first = steps.first().map_or(0.0, Step::per_cpu_second);
    let mut stays = true;
    for step in steps {
        let ratio = step.per_cpu_second() / first;
        stays &= ratio >= 1.0 - FALL_MAX && step.consort.samples.iter().all(|sample| sample.errors == 0);
        table.push(vec![
            step.members.to_string(),
            number(step.consort.median(|sample| Some(sample.rate))),
            number(step.consort.median(|sample| Some(sample.cpu_us))),
            number(Some(step.per_cpu_second())),
            format!("{ratio:.2}"),
            number(step.consort.median(|sample| Some(sample.latency?.p999))),
        ]);
    }
    println!("{}", markdown(&table, 1));
    let verdict = if stays { "stays" } else { "does not stay" };
    println!("\nwhat a CPU does {verdict} within {:.0} %", FALL_MAX * 100.0);
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn step(members: usize, cpu_us: f64) -> Step {
        let sample = Sample { rate: 1.0, cpu_us, latency: None, rss_mb: 1.0, errors: 0 };
        Step { members, consort: Samples { warmup: Vec::new(), samples: vec![sample] } }
    }

    /// S001-7: a CPU does as much in a large cluster as in a small one.
    #[test]
    fn calls_that_become_dearer_with_members_are_a_failure() {
        assert!(print(&[step(3, 10.0), step(9, 10.0)]));
        assert!(print(&[step(3, 10.0), step(9, 11.0)]));
        assert!(!print(&[step(3, 10.0), step(9, 12.0)]));
    }
}
