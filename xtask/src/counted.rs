//! `cargo test`, with a count of the tests.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::steps::{Outcome, ended};

const REPEATED_MAX: usize = 400;

/// Shows the output, counts passed tests, and repeats the output of failed ones in the outcome, because hours
/// of output lie between it and the table.
pub(crate) fn cargo_test(arguments: &[impl AsRef<OsStr>]) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    // The programs after one that fails have something to say, too.
    let (subcommand, options) = arguments.split_at(1);
    command.args(subcommand).arg("--no-fail-fast").args(options).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Failed(format!("cargo: {error}")),
    };
    let (mut passed, mut failures) = (0, Failures::default());
    if let Some(output) = child.stdout.take() {
        let mut shown = std::io::stdout().lock();
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line);
            passed += passed_in(&text).unwrap_or(0);
            failures.note(&text);
            // Nobody may be reading any more; the tests count all the same.
            let _ = shown.write_all(&line).and_then(|()| shown.write_all(b"\n"));
        }
    }
    match ended(&command, child.wait()) {
        Outcome::Passed => Outcome::Tested(passed),
        Outcome::Failed(why) => Outcome::Failed([vec![why], failures.lines].concat().join("\n")),
        other => other,
    }
}

#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    /// Whether the next line belongs to a failed test.
    is_within: bool,
}

impl Failures {
    fn note(&mut self, line: &str) {
        let begins = line.starts_with("---- ") && line.ends_with(" stdout ----");
        // The names of the failed tests follow, with nothing new.
        self.is_within = begins || self.is_within && line != "failures:";
        if self.is_within && self.lines.len() < REPEATED_MAX {
            self.lines.push(line.to_owned());
        }
    }
}

/// Set if the line closes a test program's run.
fn passed_in(line: &str) -> Option<u32> {
    let (_, counts) = line.split_once("test result: ")?.1.split_once(". ")?;
    counts.split_once(" passed;")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Failures, passed_in};

    #[test]
    fn only_closing_lines_count() {
        let closing = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out";
        assert_eq!(passed_in(closing), Some(12));
        assert_eq!(passed_in("test result: FAILED. 3 passed; 2 failed; 0 ignored"), Some(3));
        assert_eq!(passed_in("test twelve_passed ... ok"), None);
    }

    #[test]
    fn output_of_failed_tests_is_kept() {
        let printed = [
            "test one ... FAILED",
            "failures:",
            "",
            "---- one stdout ----",
            "thread 'one' panicked: 1 is not 2",
            "failures:",
            "    one",
            "test result: FAILED. 0 passed; 1 failed",
        ];
        let mut failures = Failures::default();
        printed.iter().for_each(|line| failures.note(line));
        assert_eq!(failures.lines, printed[3..5]);
    }
}
