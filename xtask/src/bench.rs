//! `cargo xtask bench`: builds the bench as it is released, and runs it.

use std::process::ExitCode;

use crate::steps::{Outcome, cargo, cargo_run};

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let bench = ["--package", "consort-bench", "--bin", "consort-bench"];
    if arguments.iter().any(|argument| ["-h", "--help"].contains(&argument.as_str())) {
        // A release build takes minutes, and the text does not depend on it.
        return cargo_run(&bench, arguments);
    }
    let build = ["build", "--release", "--package", "consort-cli", "--package", "consort-bench"];
    if let Outcome::Failed(why) = cargo(&build) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    cargo_run(&[&["--release"], &bench[..]].concat(), arguments)
}
