//! The results of the parts, written as soon as each is over, so that a later failure loses none.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::options::Options;
use crate::previous::Previous;
use crate::report::{self, Machine};
use crate::targets::Row;

#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    /// Failed calls; lost, duplicated or reordered messages.
    pub(crate) errors: u64,
    /// A guarantee does not hold, apart from the targets of rows.
    pub(crate) is_broken: bool,
    pub(crate) failures: Vec<anyhow::Error>,
}

impl Outcome {
    pub(crate) fn failed(error: anyhow::Error) -> Self {
        Self { failures: vec![error], ..Self::default() }
    }
}

pub(crate) struct Results<'a> {
    options: &'a Options,
    content: Map<String, Value>,
    rows: Vec<Row>,
    /// They fail the command whatever the figures are.
    failures: Vec<String>,
    is_broken: bool,
}

impl<'a> Results<'a> {
    /// Writes at once, so that a write error appears before the first measurement.
    pub(crate) fn new(options: &'a Options, machine: &Machine) -> anyhow::Result<Self> {
        let content = Map::from_iter([("machine".to_owned(), serde_json::to_value(machine)?)]);
        let results = Self { options, content, rows: Vec::new(), failures: Vec::new(), is_broken: false };
        results.write()?;
        Ok(results)
    }

    pub(crate) fn keep(&mut self, name: &str, content: &impl Serialize) {
        let kept = serde_json::to_value(content).map_err(anyhow::Error::from).and_then(|content| {
            self.content.insert(name.to_owned(), content);
            self.write()
        });
        if let Err(error) = kept {
            self.fail(format!("{name}: {error:#}"));
        }
    }

    pub(crate) fn add(&mut self, part: &str, outcome: Outcome) {
        self.rows.extend(outcome.rows);
        self.is_broken |= outcome.is_broken;
        for error in outcome.failures {
            self.fail(format!("{part}: {error:#}"));
        }
        if outcome.errors > 0 {
            self.fail(format!("{part}: {} calls failed, or messages were lost", outcome.errors));
        }
        if let Err(error) = self.write() {
            self.fail(format!("{part}: {error:#}"));
        }
    }

    pub(crate) fn verdict(&self, previous: Option<&Previous>) -> ExitCode {
        report::print_met(&self.rows);
        let is_as_before =
            previous.is_none_or(|previous| previous.compare(&self.rows, self.options.tolerance));
        // Printed again, because the first print scrolled away long ago.
        for failure in &self.failures {
            eprintln!("bench: {failure}");
        }
        if self.is_good() && is_as_before { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn is_good(&self) -> bool {
        let is_missed = || self.is_broken || self.rows.iter().any(|row| row.is_met() == Some(false));
        self.failures.is_empty() && !(self.options.check && is_missed())
    }

    fn fail(&mut self, why: String) {
        eprintln!("bench: {why}");
        self.failures.push(why);
    }

    fn write(&self) -> anyhow::Result<()> {
        self.options.json.as_ref().map_or(Ok(()), |file| report::write(file, &self.everything()))
    }

    fn everything(&self) -> Value {
        let mut content = self.content.clone();
        content.insert("rows".to_owned(), serde_json::json!(self.rows));
        if !self.failures.is_empty() {
            content.insert("failures".to_owned(), serde_json::json!(self.failures));
        }
        content.into()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::Parser;

    use super::*;
    use crate::sample::Runs;
    use crate::targets::{CPU_PER_CALL, Target};

    fn outcome(cpu_us: f64) -> Outcome {
        let of = ("uperf".to_owned(), CPU_PER_CALL);
        let row = Row::alone(of, &Runs(vec![cpu_us]), Some(Target::AtMost(1.0)));
        Outcome { rows: vec![row], ..Outcome::default() }
    }

    fn results(options: &Options) -> Results<'_> {
        Results::new(options, &Machine::look()).unwrap()
    }

    #[test]
    fn a_part_that_fails_loses_nothing_of_the_others() {
        let file = std::env::temp_dir().join(format!("consort-bench-findings-{}.json", std::process::id()));
        let options = Options::parse_from(["bench".as_ref(), "--json".as_ref(), file.as_os_str()]);
        let mut results = results(&options);
        let written = || -> Value { serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap() };
        assert!(written()["machine"]["cpus"].is_u64(), "the file is there from the beginning");
        results.keep("record", &"so far");
        results.add("uperf", outcome(2.0));
        assert_eq!(written()["rows"][0]["consort"], 2.0, "before the next part begins");
        assert!(results.is_good());
        results.add("gigabit", Outcome::failed(anyhow!("no tc")));
        results.add("bundlers", outcome(3.0));
        let written = written();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(
            (&written["rows"][0]["consort"], &written["rows"][1]["consort"]),
            (&2.0.into(), &3.0.into())
        );
        assert_eq!(written["record"], "so far");
        assert_eq!(written["failures"][0], "gigabit: no tc");
        assert!(!results.is_good());
        assert_eq!(results.verdict(None), ExitCode::FAILURE);
    }

    #[test]
    fn lost_messages_of_any_part_fail_the_bench() {
        let options = Options::parse_from(["bench"]);
        let mut results = results(&options);
        results.add("gigabit", Outcome { errors: 3, ..outcome(1.0) });
        results.add("senders", outcome(1.0));
        assert!(!results.is_good());
        assert!(results.failures[0].starts_with("gigabit: 3 "));
    }

    #[test]
    fn missed_targets_and_broken_promises_fail_where_they_are_checked() {
        let (easy, strict) = (Options::parse_from(["bench"]), Options::parse_from(["bench", "--check"]));
        for missed in [|| outcome(2.0), || Outcome { is_broken: true, ..outcome(1.0) }] {
            for options in [&easy, &strict] {
                let mut results = results(options);
                results.add("members", outcome(1.0));
                assert!(results.is_good());
                results.add("members", missed());
                assert_eq!(results.is_good(), !options.check);
            }
        }
    }
}
