//! `cargo xtask bench`: builds what is measured as it is released, and measures it.

use std::process::{Command, ExitCode};

use crate::steps::{Outcome, cargo};

/// Runs the bench with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let build = ["build", "--release", "--package", "consort-cli", "--package", "consort-bench"];
    if let Outcome::Failed(why) = cargo(&build) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let mut bench = Command::new(env!("CARGO"));
    bench.args(["run", "--release", "--quiet", "--package", "consort-bench", "--bin", "consort-bench", "--"]);
    match bench.args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
