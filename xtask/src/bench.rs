//! `cargo xtask bench`: builds what is measured as it is released, and measures it.

use std::process::ExitCode;

use crate::steps::{Outcome, cargo, cargo_run};

/// Runs the bench with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let build = ["build", "--release", "--package", "consort-cli", "--package", "consort-bench"];
    if let Outcome::Failed(why) = cargo(&build) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    cargo_run(&["--release", "--package", "consort-bench", "--bin", "consort-bench"], arguments)
}
