//! `cargo xtask fuzz`: gives decoders and stacks hostile input, with optimisation and every assertion.

use std::process::{Command, ExitCode};

/// Runs the driver of `crates/fuzz` with these arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let mut fuzz = Command::new(env!("CARGO"));
    fuzz.args(["run", "--profile", "fuzz", "--quiet", "--package", "consort-fuzz", "--"]);
    match fuzz.args(arguments).status() {
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
