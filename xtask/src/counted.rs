//! `cargo test`, with a count of what ran.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::steps::{Outcome, ended};

/// Runs `cargo test` with these arguments, shows what it prints as it comes, and counts the tests that passed.
pub(crate) fn cargo_test(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    // The programs after one that fails have something to say, too.
    let (subcommand, options) = arguments.split_at(1);
    command.args(subcommand).arg("--no-fail-fast").args(options).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Failed(format!("cargo: {error}")),
    };
    let mut passed = 0;
    if let Some(output) = child.stdout.take() {
        let mut shown = std::io::stdout().lock();
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            passed += passed_in(&String::from_utf8_lossy(&line)).unwrap_or(0);
            // Nobody may be reading any more; the tests count all the same.
            let _ = shown.write_all(&line).and_then(|()| shown.write_all(b"\n"));
        }
    }
    match ended(&command, child.wait()) {
        Outcome::Passed if passed == 0 => Outcome::Failed("no test ran".to_owned()),
        Outcome::Passed => Outcome::Tested(passed),
        other => other,
    }
}

/// How many tests passed, if the line closes a test program's run.
fn passed_in(line: &str) -> Option<u32> {
    let (_, counts) = line.split_once("test result: ")?.1.split_once(". ")?;
    counts.split_once(" passed;")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::passed_in;

    #[test]
    fn only_closing_lines_count() {
        let closing = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out";
        assert_eq!(passed_in(closing), Some(12));
        assert_eq!(passed_in("test result: FAILED. 3 passed; 2 failed; 0 ignored"), Some(3));
        assert_eq!(passed_in("test twelve_passed ... ok"), None);
    }
}
