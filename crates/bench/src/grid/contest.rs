//! Consort and its contestants under one load: each figure is compared with the best of the others.

use serde::Serialize;

use crate::report::{markdown, number};
use crate::sample::{Figure, Runs, Sample, Samples};
use crate::targets::{Rival, Row, Target};

#[derive(Serialize)]
pub(crate) struct Contest {
    pub(crate) subject: String,
    pub(crate) consort: Samples,
    pub(crate) others: Vec<Other>,
}

#[derive(Serialize)]
pub(crate) struct Other {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) samples: Samples,
}

pub(crate) struct Compared {
    pub(crate) name: &'static str,
    pub(crate) of: Figure,
    pub(crate) is_gain: bool,
    pub(crate) target: Option<Target>,
}

impl Compared {
    pub(crate) fn gain(name: &'static str, of: Figure, target: Option<Target>) -> Self {
        Self { name, of, is_gain: true, target }
    }

    pub(crate) fn cost(name: &'static str, of: Figure, target: Option<Target>) -> Self {
        Self { name, of, is_gain: false, target }
    }

    fn best(&self, others: &[Other]) -> Option<Runs> {
        let runs = others.iter().map(|other| other.samples.runs(self.of));
        let measured = runs.filter_map(|runs| Some((runs.median()?, runs)));
        let best = if self.is_gain {
            measured.max_by(|one, other| one.0.total_cmp(&other.0))
        } else {
            measured.min_by(|one, other| one.0.total_cmp(&other.0))
        };
        best.map(|(_, runs)| runs)
    }
}

impl Contest {
    pub(crate) fn new(subject: String, others: impl IntoIterator<Item = String>) -> Self {
        let other = |name| Other { name, samples: Samples::default() };
        Self { subject, consort: Samples::default(), others: others.into_iter().map(other).collect() }
    }

    pub(crate) fn errors(&self) -> u64 {
        self.consort.errors() + self.others.iter().map(|other| other.samples.errors()).sum::<u64>()
    }

    pub(crate) fn rows(&self, figures: &[Compared]) -> Vec<Row> {
        let row = |figure: &Compared| {
            let of = (self.subject.clone(), figure.name);
            let consort = self.consort.runs(figure.of);
            if self.others.is_empty() {
                return Row::alone(of, &consort, None);
            }
            Row::beside(Rival::Grids, of, &consort, figure.best(&self.others).as_ref(), figure.target)
        };
        figures.iter().map(row).collect()
    }
}

pub(crate) fn comparison_table(contests: &[Contest], figures: &[Compared]) -> String {
    let mut table = vec![["subject", "contestant"].map(str::to_owned).to_vec()];
    table[0].extend(figures.iter().map(|figure| figure.name.to_owned()));
    for contest in contests {
        let others = contest.others.iter().map(|other| (other.name.as_str(), &other.samples));
        for (contestant, samples) in std::iter::once(("Consort", &contest.consort)).chain(others) {
            let mut line = vec![contest.subject.clone(), contestant.to_owned()];
            line.extend(figures.iter().map(|figure| number(samples.median(figure.of))));
            table.push(line);
        }
    }
    markdown(&table, 2)
}

pub(crate) const RATE: Figure = |sample: &Sample| Some(sample.rate);
pub(crate) const CPU: Figure = |sample: &Sample| Some(sample.cpu_us);
pub(crate) const MEMORY: Figure = |sample: &Sample| Some(sample.rss_mb);

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rate: f64, cpu_us: f64) -> Samples {
        let sample = Sample { rate, cpu_us, latency: None, rss_mb: 1.0, errors: 1 };
        Samples { warmup: Vec::new(), samples: vec![sample] }
    }

    #[test]
    fn each_figure_is_beside_the_best_of_the_others() {
        let mut contest = Contest::new("reads".to_owned(), ["fast".to_owned(), "thrifty".to_owned()]);
        contest.consort = samples(600.0, 2.0);
        contest.others[0].samples = samples(100.0, 20.0);
        contest.others[1].samples = samples(50.0, 8.0);
        let figures = [
            Compared::gain("requests/s", RATE, Some(Target::AtLeast(5.0))),
            Compared::cost("CPU", CPU, Some(Target::AtMost(0.2))),
        ];
        let rows = contest.rows(&figures);
        assert_eq!((rows[0].ratio, rows[0].met), (Some(6.0), Some(true)));
        assert_eq!((rows[1].ratio, rows[1].met), (Some(0.25), Some(false)));
        assert_eq!(contest.errors(), 3);
        let table = comparison_table(&[contest], &figures);
        assert!(table.lines().nth(4).is_some_and(|line| line.contains("thrifty") && line.contains("8.00")));
    }

    #[test]
    fn without_comparison_no_target_is_met_or_missed() {
        let mut contest = Contest::new("reads".to_owned(), []);
        contest.consort = samples(600.0, 2.0);
        let rows = contest.rows(&[Compared::cost("CPU", CPU, Some(Target::AtMost(0.2)))]);
        assert_eq!((rows[0].consort, rows[0].met), (Some(2.0), None));
    }
}
