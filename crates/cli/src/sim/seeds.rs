use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use consort_sim::Violation;

/// The seeds of a command, and the form of its output.
#[derive(Args)]
pub(super) struct Seeds {
    /// Number of seeds, each a run
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Replay this seed, and print its faults and views
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    pub(super) seed: Option<u64>,
    /// Faults: those that the seed draws, or none
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Faults::All)]
    faults: Faults,
    /// Print results as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Faults {
    All,
    None,
}

impl Seeds {
    pub(super) fn has_faults(&self) -> bool {
        self.faults == Faults::All
    }

    pub(super) fn faults_option(&self) -> &'static str {
        if self.has_faults() { "" } else { " --faults none" }
    }

    /// Replays a seed: prints its faults and views, and the summary or the violation.
    pub(super) fn replay<R>(
        &self,
        seed: u64,
        (result, story): (Result<R, Violation>, Vec<String>),
        summary: impl Fn(&[(u64, R)], bool) -> String,
    ) -> ExitCode {
        if !self.json {
            story.iter().for_each(|line| println!("{line}"));
            println!();
        }
        match result {
            Ok(report) => {
                print!("{}", summary(&[(seed, report)], self.json));
                ExitCode::SUCCESS
            }
            Err(violation) => {
                println!("{violation}");
                ExitCode::FAILURE
            }
        }
    }

    /// Runs each seed. Prints violations with the commands that replay their seeds, and a summary of the others.
    pub(super) fn each<R>(
        &self,
        run: impl Fn(u64) -> Result<R, Violation>,
        summary: impl Fn(&[(u64, R)], bool) -> String,
        replay_command: impl Fn(u64) -> String,
    ) -> ExitCode {
        let begun = Instant::now();
        let shows_progress = std::io::stderr().is_terminal();
        let mut reports = Vec::new();
        let mut broken = 0;
        for seed in self.first..self.first.saturating_add(self.seeds) {
            match run(seed) {
                Ok(report) => reports.push((seed, report)),
                Err(violation) => {
                    if shows_progress {
                        eprintln!();
                    }
                    println!("{violation}");
                    println!("replay: {}", replay_command(seed));
                    broken += 1;
                }
            }
            if shows_progress {
                let (done, seconds) = (reports.len() + broken, begun.elapsed().as_secs_f64());
                eprint!("\r  {done} of {} seeds, {:.1} per second ", self.seeds, done as f64 / seconds);
                let _ = std::io::stderr().flush();
            }
        }
        if shows_progress {
            eprintln!();
        }
        print!("{}", summary(&reports, self.json));
        if broken > 0 {
            eprintln!("{broken} of {} seeds broke a rule; the table is of the others", self.seeds);
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

/// Sums over runs, with the trace of a single one: as JSON, or a row each.
pub(super) fn sums_text(
    sums: &[(&str, u64)],
    longest: Option<Duration>,
    trace: Option<u64>,
    json: bool,
) -> String {
    let trace = trace.map(|trace| format!("{trace:016x}"));
    if json {
        let named = |name: &str| name.replace(' ', "_");
        let mut fields: serde_json::Map<String, serde_json::Value> =
            sums.iter().map(|(name, value)| (named(name), (*value).into())).collect();
        fields.extend(longest.map(|time| ("settled_seconds_max".to_owned(), time.as_secs_f64().into())));
        fields.extend(trace.map(|trace| ("trace".to_owned(), trace.into())));
        return serde_json::Value::from(fields).to_string() + "\n";
    }
    let mut text: String = sums.iter().map(|(name, value)| format!("{name:<24}{value:>16}\n")).collect();
    if let Some(longest) = longest {
        text += &format!("{:<24}{:>16}\n", "settled, longest", format!("{:.2} s", longest.as_secs_f64()));
    }
    text += &trace.map(|trace| format!("trace {trace}\n")).unwrap_or_default();
    text
}
