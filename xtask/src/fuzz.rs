//! `cargo xtask fuzz`: gives decoders and stacks hostile input, with optimisation and every assertion.

use std::process::ExitCode;

use crate::steps::cargo_run;

/// Runs the driver of `crates/fuzz` with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    cargo_run(&["--profile", "fuzz", "--package", "consort-fuzz"], arguments)
}
