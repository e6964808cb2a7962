//! The gate: `cargo xtask test`.

mod claims;
mod counted;
mod interop;
mod steps;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checks Consort.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs everything that has to pass: formatting, the table of claims, lints, all tests, documentation, Java interop.
    Test {
        /// Runs one step only.
        #[arg(long, value_name = "STEP")]
        only: Option<String>,
        /// Only tests whose name contains this (with `--only`).
        #[arg(value_name = "FILTER")]
        filter: Option<String>,
    },
}

fn main() -> ExitCode {
    let Command::Test { only, filter } = Arguments::parse().command;
    steps::run(only.as_deref(), filter.as_deref())
}
