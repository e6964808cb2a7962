//! The gate, `cargo xtask test`; the bench, `cargo xtask bench`; hostile input, `cargo xtask fuzz`; what the command is made of,
//! `cargo xtask sbom`, and known holes in that, `cargo xtask advisories`.

mod advisories;
mod bench;
mod beside;
mod book;
mod claims;
mod counted;
mod disk;
mod documents;
mod fuzz;
mod interop;
mod licenses;
mod links;
mod messages;
mod miri;
mod package;
mod prebuild;
mod reference;
mod release;
mod sbom;
mod semver;
mod steps;
mod structure;
mod test_targets;
mod tools;
mod words;

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
    /// Runs everything that has to pass: formatting, the table of claims, lints, all tests, documentation,
    /// injected bugs, Java interop.
    Test {
        /// Runs one step only, or the steps of a group (`tests`, `interop`).
        #[arg(long, value_name = "STEP")]
        only: Option<String>,
        /// Only tests whose name contains this (with `--only`). For the step `semver`: the revision to compare with.
        #[arg(value_name = "FILTER")]
        filter: Option<String>,
        /// Runs the long tests of the step instead, which take minutes each and are no part of the gate (with `--only kubernetes`).
        #[arg(long, requires = "only")]
        long: bool,
    },
    /// Measures Consort beside JGroups, bare sockets and other data grids in one run; `bench --help` lists the options.
    #[command(disable_help_flag = true)]
    Bench {
        /// For the bench.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Gives decoders and stacks hostile input from a seed; `fuzz --help` lists the options. `fuzz --coverage` has libFuzzer look
    /// for inputs that reach new code; `fuzz --coverage --help` lists its options.
    #[command(disable_help_flag = true)]
    Fuzz {
        /// For the driver.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Writes the chapter of the book with all protocols and attributes, from their declarations in the code.
    Reference,
    /// Builds the book into `target/book`, and mdBook before, if need be.
    Book,
    /// Runs the commands in the documents in the present network. The step `documents` of the gate runs this in a network of
    /// its own.
    #[command(hide = true)]
    Documents,
    /// Runs tests of the modules with unsafe code in Miri, on the nightly toolchain.
    Miri,
    /// Writes which crates are compiled into the command, with versions, licenses and checksums: CycloneDX 1.5 in JSON.
    Sbom {
        /// Into this file instead of the output.
        #[arg(long, value_name = "FILE")]
        output: Option<String>,
    },
    /// Makes all files of a release in `target/release-files`: an archive and a Debian package with the command, completions and
    /// manual pages, the book, the chart, the image, the crates, the bill of materials, the changes and checksums. Without buildah,
    /// mmdebstrap or root the image is left out, with a line that says so.
    Release {
        /// Into this directory, which is new, empty or holds an earlier release: that one is removed.
        #[arg(long, value_name = "DIR")]
        output: Option<String>,
        /// Takes this binary instead of building one.
        #[arg(long, value_name = "FILE")]
        binary: Option<String>,
    },
    /// Looks for known holes in these crates, in a copy of RustSec's advisory-db, and prints the date of the copy. Without a
    /// database it fails.
    Advisories {
        /// The directory of the copy.
        #[arg(long, value_name = "DIR")]
        database: Option<String>,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Test { only, filter, long: true } => steps::run_long(only.as_deref(), filter.as_deref()),
        Command::Test { only, filter, long: false } => steps::run(only.as_deref(), filter.as_deref()),
        Command::Bench { arguments } => bench::run(&arguments),
        Command::Fuzz { arguments } => fuzz::run(&arguments),
        Command::Reference => reference::write(),
        Command::Book => match book::run() {
            steps::Outcome::Passed => ExitCode::SUCCESS,
            steps::Outcome::Failed(error) | steps::Outcome::Missing(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
            steps::Outcome::Tested(_) | steps::Outcome::Postponed(_) => ExitCode::SUCCESS,
        },
        Command::Documents => documents::run_here(),
        Command::Miri => miri::run(),
        Command::Sbom { output } => sbom::run(output.as_deref()),
        Command::Release { output, binary } => release::run(output.as_deref(), binary.as_deref()),
        Command::Advisories { database } => advisories::run(database.as_deref()),
    }
}
