//! Steps of a whole run that are made beside other steps, one after the other. Their output is printed when they have ended.

use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::claims::root;
use crate::prebuild::NICENESS;
use crate::steps::{FAILED, MISSING, Outcome};

pub(crate) struct Beside(JoinHandle<Vec<Run>>);

/// A step that has ended.
struct Run {
    name: &'static str,
    time: Duration,
    output: String,
    outcome: Outcome,
}

impl Beside {
    /// Starts the steps of these names, each in a process of its own.
    pub(crate) fn start(names: &'static [&'static str]) -> Self {
        Self(std::thread::spawn(move || names.iter().copied().map(run).collect()))
    }

    /// Waits for the end of all steps, and prints their output.
    pub(crate) fn finish(self) -> Vec<(&'static str, Duration, Outcome)> {
        let runs = match self.0.join() {
            Ok(runs) => runs,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        runs.into_iter()
            .map(|run| {
                print!("{}", run.output);
                (run.name, run.time, run.outcome)
            })
            .collect()
    }
}

fn run(name: &'static str) -> Run {
    let start = Instant::now();
    let (output, outcome) = match run_alone(name) {
        Ok((output, is_good)) => {
            let after =
                |mark: &str| output.lines().rev().find_map(|line| Some(line.split_once(mark)?.1.to_owned()));
            let outcome = match after(MISSING) {
                Some(tool) => Outcome::Missing(tool),
                None if is_good => Outcome::Passed,
                None => Outcome::Failed(after(FAILED).unwrap_or_else(|| "it has not ended".to_owned())),
            };
            (output, outcome)
        }
        Err(error) => (String::new(), Outcome::Failed(error.to_string())),
    };
    Run { name, time: start.elapsed(), output, outcome }
}

fn run_alone(name: &str) -> std::io::Result<(String, bool)> {
    let mut command = Command::new("nice");
    command.args(["-n", NICENESS]).arg(std::env::current_exe()?).args(["test", "--only", name]);
    let output = command.stdin(Stdio::null()).current_dir(root()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((String::from_utf8_lossy(&text).into_owned(), output.status.success()))
}
