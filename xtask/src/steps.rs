//! The steps of the gate, and the table at its end.

use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::book;
use crate::claims;
use crate::counted::cargo_test;
use crate::documents;
use crate::interop;
use crate::links;
use crate::package;
use crate::prebuild::Prebuild;
use crate::reference;
use crate::semver;
use crate::structure;
use crate::words;

pub(crate) enum Outcome {
    Passed,
    /// This number of tests ran, and all passed.
    Tested(u32),
    Failed(String),
    /// A tool is not installed: a gap on a laptop, a failure in CI.
    Missing(String),
}

type Step = (&'static str, &'static str, fn(Option<&str>) -> Outcome);

const STEPS: &[Step] = &[
    ("format", "every file is formatted", |_| cargo(&["fmt", "--all", "--check"])),
    ("claims", "every claim has a row, and every test that a row names exists", |_| claims::run()),
    ("words", "documentation names actors and things, and tests their subjects", |_| words::run()),
    (
        "structure",
        "modules without circles, and types and functions of a size that a reader can survey",
        |_| structure::run(),
    ),
    ("lints", "no compiler or clippy warning", |_| {
        // Within the workspace the client has its feature, because the interop tests ask for it, and no bug is injected.
        let others = [
            "--package=consort-sim",
            "--package=consort-group",
            "--package=consort-grid",
            "--package=consort-client",
            "--features=consort-sim/injected-bugs,consort-group/injected-bugs,consort-grid/injected-bugs",
        ];
        let parts: [&[&str]; 2] = [&["--workspace"], &others];
        let mut outcomes = parts.into_iter().map(clippy);
        outcomes.find(|outcome| !matches!(outcome, Outcome::Passed)).unwrap_or(Outcome::Passed)
    }),
    ("tests", "unit, property, vector, live and documentation tests", |filter| {
        let arguments: Vec<&str> = ALONE.into_iter().chain(filter).collect();
        cargo_test(&arguments)
    }),
    ("docs", "links of documents lead somewhere, and the documentation builds without warning", |_| {
        let links = links::run();
        if !matches!(links, Outcome::Passed) {
            return links;
        }
        let reference = reference::check();
        if !matches!(reference, Outcome::Passed) {
            return reference;
        }
        // The command's page has the place of the library `consort`, which the second part takes.
        let parts: [&[&str]; 2] = [&["--workspace", "--bin=consort"], &["--workspace"]];
        let mut outcomes = parts.into_iter().map(|part| {
            let mut command = Command::new(env!("CARGO"));
            command.args(["doc", "--no-deps", "--quiet"]).args(part).env("RUSTDOCFLAGS", "--deny warnings");
            status(command)
        });
        outcomes.find(|outcome| !matches!(outcome, Outcome::Passed)).unwrap_or(Outcome::Passed)
    }),
    ("package", "public crates have what a registry needs, and compile from their packages", |_| {
        package::run()
    }),
    (
        "semver",
        "the public API is compatible with the last release, as far as its version says",
        |revision| semver::run(revision),
    ),
    (
        "injected-bugs",
        "the simulator finds every bug that is injected into the protocols and the grid",
        |filter| {
            let arguments: Vec<&str> = INJECTED.into_iter().chain(filter).collect();
            match cargo_test(&arguments) {
                Outcome::Tested(simulated) if filter.is_none() => {
                    match cargo_test(&[&INJECTED_INTO_NODES[..], &["injected_bug"]].concat()) {
                        Outcome::Tested(more) => Outcome::Tested(simulated + more),
                        outcome => outcome,
                    }
                }
                outcome => outcome,
            }
        },
    ),
    ("book", "mdBook builds the book", |_| book::run()),
    ("documents", "the commands in the documents run", |_| documents::run()),
    ("interop", "one cluster with Java JGroups members, and the bench beside them", interop::run),
];

/// These tests need nothing but cargo.
const ALONE: [&str; 6] =
    ["test", "--workspace", "--exclude", "consort-interop", "--exclude", "consort-bench"];

const INJECTED: [&str; 5] =
    ["test", "--profile=quick", "--package=consort-sim", "--features=injected-bugs", "--test=injected_bugs"];

const INJECTED_INTO_NODES: [&str; 5] =
    ["test", "--profile=quick", "--package=consort-grid", "--features=injected-bugs", "--test=it"];

/// The builds of the step `injected-bugs` and later ones, in the order of their use.
fn later_builds() -> Vec<Vec<&'static str>> {
    let tests =
        [&INJECTED[..], &INJECTED_INTO_NODES, &interop::TESTS].map(|test| [test, &["--no-run"]].concat());
    let [in_clusters, in_nodes, interop] = tests;
    vec![in_clusters, in_nodes, interop::TOOL.to_vec(), interop, book::MDBOOK.install()]
}

pub(crate) fn run(only: Option<&str>, filter: Option<&str>) -> ExitCode {
    let steps: Vec<&Step> = STEPS.iter().filter(|(name, ..)| only.is_none_or(|only| only == *name)).collect();
    if steps.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|(name, ..)| *name).collect();
        eprintln!("no such step; there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let is_ci = std::env::var_os("CI").is_some();
    let mut results: Vec<(&str, Duration, Outcome)> = Vec::new();
    let mut prebuild = None;
    for (name, what, run) in steps {
        println!("--- {name}: {what}");
        let start = Instant::now();
        match *name {
            "tests" if only.is_none() => prebuild = Some(Prebuild::start(later_builds())),
            "injected-bugs" => prebuild.take().into_iter().for_each(Prebuild::finish),
            _ => {}
        }
        let outcome = run(filter);
        results.push((name, start.elapsed(), outcome));
    }
    println!();
    let mut has_failed = false;
    for (name, time, outcome) in &results {
        let text = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Tested(count) => format!("passed, {count} tests"),
            Outcome::Failed(why) => format!("FAILED: {why}"),
            Outcome::Missing(what) if is_ci => format!("FAILED, because it is missing: {what}"),
            Outcome::Missing(what) => format!("MISSING, not run: {what}"),
        };
        has_failed |= match outcome {
            Outcome::Passed | Outcome::Tested(_) => false,
            Outcome::Failed(_) => true,
            Outcome::Missing(_) => is_ci,
        };
        println!("{name:<10} {:>6.1} s  {text}", time.as_secs_f64());
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn clippy(what: &[&str]) -> Outcome {
    cargo(&[&["clippy", "--all-targets", "--quiet"], what, &["--", "--deny", "warnings"]].concat())
}

pub(crate) fn cargo(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    status(command)
}

pub(crate) fn cargo_run(which: &[&str], arguments: &[String]) -> ExitCode {
    let mut command = Command::new(env!("CARGO"));
    match command.args(["run", "--quiet"]).args(which).arg("--").args(arguments).status() {
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

pub(crate) fn status(mut command: Command) -> Outcome {
    let status = command.stdin(Stdio::null()).status();
    ended(&command, status)
}

pub(crate) fn ended(command: &Command, status: std::io::Result<ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("{} ended with {status}", show(command))),
        Err(error) => Outcome::Failed(format!("{}: {error}", show(command))),
    }
}

fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    format!("{program} {}", arguments.join(" "))
}
