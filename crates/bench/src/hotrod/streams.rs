//! Large values in pieces: beside the same at once, and small gets beside them on the same connection (S002-15,
//! S002-17).

use serde_json::Value;

use super::server_process::ServerProcess;
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::Runs;
use crate::targets::{Rival, Row, Target};
use crate::tools;

/// The limit of small gets' times, relative to their times alone (S002-15).
const TARGET: f64 = 2.0;

/// The part of whole values' rate: the difference between two runs of the same (S002-17).
const RATE_TARGET: f64 = 0.9;

pub(crate) fn streams(options: &Options, results: &mut Results<'_>) {
    let mut outcome = Outcome::default();
    let mut reports = Vec::new();
    for run in 1..=options.runs() {
        Progress::result(&format!("{} MB each way in pieces, run {run}", options.streamed_mb()));
        match once(options) {
            Ok(figures) => {
                Progress::result(&figures.to_string());
                reports.push(figures);
            }
            Err(error) => {
                outcome.failures.push(error);
                break;
            }
        }
        results.keep("streams", &reports);
    }
    outcome.rows = rows(options, &reports);
    report::print_rows(&outcome.rows);
    results.add("streams", outcome);
}

fn once(options: &Options) -> anyhow::Result<Value> {
    let server = ServerProcess::consort()?;
    let mut figures = tools::chunked_values(&server.at(), options)?;
    figures["server_mb"] = server.peak_memory_mb().into();
    Ok(figures)
}

fn rows(options: &Options, reports: &[Value]) -> Vec<Row> {
    let runs =
        |path: &str| Runs(reports.iter().filter_map(|reports| reports.pointer(path)?.as_f64()).collect());
    let mut rows = Vec::new();
    for (way, subject) in [("/written", "written"), ("/read", "read")] {
        let subject = format!("{} MB {subject} in pieces", options.streamed_mb());
        let of = |figure| (subject.clone(), figure);
        for (figure, path, target) in
            [("p50 us of gets", "p50", None), ("p99 us of gets", "p99", Some(Target::Below(TARGET)))]
        {
            let (beside, alone) =
                (runs(&format!("{way}/gets_us/{path}")), runs(&format!("/alone_us/{path}")));
            rows.push(Row::beside(Rival::Without, of(figure), &beside, Some(&alone), target));
        }
        rows.push(Row::alone(of("MB/s beside gets"), &runs(&format!("{way}/mb_sec")), None));
        rows.push(Row::alone(of("MB more in the client"), &runs(&format!("{way}/more_mb")), None));
        let (pieces, whole) = (runs(&format!("{way}/value_mb_sec")), runs(&format!("{way}/whole_mb_sec")));
        let target = Some(Target::AtLeast(RATE_TARGET));
        rows.push(Row::beside(Rival::AtOnce, of("MB/s"), &pieces, Some(&whole), target));
    }
    let subject = format!("{} MB each way", options.streamed_mb());
    rows.push(Row::alone((subject, "peak MB of the server"), &runs("/server_mb"), None));
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn gets_beside_a_stream_are_held_against_gets_alone() {
        let options = Options::parse_from(["bench"]);
        let way = |p99: f64| serde_json::json!({"gets_us": {"p50": 1.0, "p99": p99}, "value_mb_sec": 89.0, "whole_mb_sec": 100.0});
        let reports = serde_json::json!({"alone_us": {"p50": 1.0, "p99": 10.0}, "written": way(19.0), "read": way(20.0)});
        let rows = rows(&options, &[reports]);
        let met: Vec<_> = rows.iter().filter_map(|row| Some((row.figure, row.is_met()?))).collect();
        let wanted = [("p99 us of gets", true), ("MB/s", false), ("p99 us of gets", false), ("MB/s", false)];
        assert_eq!(met, wanted);
    }
}
