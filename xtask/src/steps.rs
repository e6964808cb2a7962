//! The steps of the gate, and the table at its end.

use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::beside::Beside;
use crate::book;
use crate::claims;
use crate::counted::cargo_test;
use crate::disk;
use crate::documents;
use crate::interop;
use crate::links;
use crate::package;
use crate::prebuild::Prebuild;
use crate::reference;
use crate::release;
use crate::semver;
use crate::structure;
use crate::test_targets;
use crate::words;

pub(crate) enum Outcome {
    Passed,
    /// This number of tests ran, and all passed.
    Tested(u32),
    Failed(String),
    /// A tool is not installed: a gap on a laptop, a failure in CI.
    Missing(String),
    /// A whole run has taken too long already.
    Postponed(String),
}

/// How the table at the end names an outcome.
pub(crate) const FAILED: &str = "FAILED: ";
pub(crate) const MISSING: &str = "MISSING, not run: ";

/// A name, what it shows, and its run with the filter of the command line.
type Step = (&'static str, &'static str, fn(Option<&str>) -> Outcome);

/// Steps that need the processor and no clusters. A whole run makes them beside the steps of the group `interop`, whose members and
/// servers mostly wait for timers.
const BESIDE: &[&str] = &["docs", "package", "semver", "book", "documents", "release"];

/// The last step of a whole run takes up to ten minutes, because Go compiles Kubernetes. It is postponed if the run has lasted longer
/// than this, so that a run stays below an hour on a slow machine.
const LAST_STEP_BEGINS: Duration = Duration::from_mins(45);

const LAST_STEP: &str = "kubernetes";

/// Names under which `--only` runs several steps.
const GROUPS: &[(&str, &[&str])] = &[
    ("tests", &["unit", "simulations", "live"]),
    ("interop", &["jgroups", "hotrod", "processes", "bench", LAST_STEP]),
];

const STEPS: &[Step] = &[
    ("disk", "the disk has the space that the other steps need", |_| disk::run()),
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
    ("unit", "unit, property, vector and documentation tests", |filter| {
        let parts: [&[&str]; 2] = [&["--lib", "--bins"], &["--doc"]];
        in_turn(parts, |part| cargo_test(&[&ALONE[..], part, filter.as_slice()].concat()))
    }),
    ("simulations", "clusters in virtual time, models of stores and queries, hostile bytes", |filter| {
        alone(|program| SIMULATED.contains(&program), filter)
    }),
    ("live", "sockets, processes and files", |filter| alone(|program| !SIMULATED.contains(&program), filter)),
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
            let parts: [&[&str]; 2] = [&INJECTED, &[&INJECTED_INTO_NODES[..], &["injected_bug"]].concat()];
            let parts = parts.into_iter().take(if filter.is_some() { 1 } else { 2 });
            in_turn(parts, |part| cargo_test(&[part, filter.as_slice()].concat()))
        },
    ),
    ("book", "mdBook builds the book", |_| book::run()),
    ("documents", "the commands in the documents run", |_| documents::run()),
    ("release", "two releases of one binary have the same bytes", |_| release::step()),
    ("jgroups", "one cluster with Java JGroups members", interop::jgroups),
    ("hotrod", "Infinispan's clients and our server, our client and Infinispan's server", interop::hotrod),
    ("processes", "servers and tools as processes, networks that are cut, the chart", interop::processes),
    ("bench", "every measurement runs, beside its peers", interop::bench),
    (LAST_STEP, "the image and the chart on a real Kubernetes", interop::kubernetes),
];

/// These tests need nothing but cargo.
const ALONE: [&str; 6] = ["test", "--workspace", "--exclude", OPTIMISED[0], "--exclude", OPTIMISED[1]];

/// Packages whose tests need other tools than cargo, and run optimised members.
pub(crate) const OPTIMISED: [&str; 2] = ["consort-interop", "consort-bench"];

/// The programs of [`ALONE`] that run in virtual time or without a network. `it` is also the name of the live tests of the client
/// and the server.
const SIMULATED: &[&str] = &["grid", "it", "short", "swarm"];

const INJECTED: [&str; 5] =
    ["test", "--profile=quick", "--package=consort-sim", "--features=injected-bugs", "--test=injected_bugs"];

const INJECTED_INTO_NODES: [&str; 5] =
    ["test", "--profile=quick", "--package=consort-grid", "--features=injected-bugs", "--test=it"];

/// The builds of the step `injected-bugs` and later ones, in the order of their use.
fn later_builds() -> Vec<Vec<String>> {
    let owned = |build: &[&str]| build.iter().copied().map(str::to_owned).collect::<Vec<_>>();
    let without_run = |test: Vec<String>| [test, owned(&["--no-run"])].concat();
    let mut builds: Vec<_> =
        [&INJECTED[..], &INJECTED_INTO_NODES].map(|test| without_run(owned(test))).into();
    builds.push(owned(&interop::TOOL));
    // The step itself reports why the names of its tests are unknown.
    builds.extend(interop::tests(|_| true).map(without_run));
    builds.push(owned(&book::MDBOOK.install()));
    builds
}

/// Runs the long tests of a step, which `only` names.
pub(crate) fn run_long(only: Option<&str>, filter: Option<&str>) -> ExitCode {
    if only != Some(LAST_STEP) {
        eprintln!("only the step {LAST_STEP} has long tests: --only {LAST_STEP} --long");
        return ExitCode::from(2);
    }
    match interop::kubernetes_long(filter) {
        Outcome::Tested(0) => {
            println!("no long test has this in its name");
            ExitCode::FAILURE
        }
        Outcome::Passed | Outcome::Tested(_) => ExitCode::SUCCESS,
        Outcome::Failed(why) | Outcome::Missing(why) | Outcome::Postponed(why) => {
            println!("FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run(only: Option<&str>, filter: Option<&str>) -> ExitCode {
    let is_selected = |name: &str| {
        only.is_none_or(|only| {
            only == name || GROUPS.iter().any(|(group, steps)| *group == only && steps.contains(&name))
        })
    };
    let steps: Vec<&Step> = STEPS.iter().filter(|(name, ..)| is_selected(name)).collect();
    if steps.is_empty() {
        let names = STEPS.iter().map(|(name, ..)| *name).chain(GROUPS.iter().map(|(name, _)| *name));
        eprintln!("no such step; there are: {}", names.collect::<Vec<_>>().join(", "));
        return ExitCode::from(2);
    }
    let is_ci = std::env::var_os("CI").is_some();
    let began = Instant::now();
    let mut results: Vec<(&str, Duration, Outcome)> = Vec::new();
    let (mut prebuild, mut beside) = (None, None);
    let steps = steps.into_iter().filter(|(name, ..)| only.is_some() || !BESIDE.contains(name));
    for (name, what, run) in steps {
        println!("--- {name}: {what}");
        let start = Instant::now();
        match *name {
            "unit" if only.is_none() => prebuild = Some(Prebuild::start(later_builds())),
            "injected-bugs" => prebuild.take().into_iter().for_each(Prebuild::finish),
            "jgroups" if only.is_none() => beside = Some(Beside::start(BESIDE)),
            _ => {}
        }
        let is_late = *name == LAST_STEP && only.is_none() && began.elapsed() > LAST_STEP_BEGINS;
        let outcome = match if is_late { postponed(name) } else { run(filter) } {
            Outcome::Tested(0) if filter.is_none() => Outcome::Failed("no test ran".to_owned()),
            // A full disk makes every later step fail with messages that name another cause.
            Outcome::Failed(why) if *name == "disk" => {
                println!("FAILED: {why}");
                return ExitCode::FAILURE;
            }
            outcome => outcome,
        };
        results.push((name, start.elapsed(), outcome));
    }
    results.extend(beside.into_iter().flat_map(Beside::finish));
    let is_untested = |(.., outcome): &(&str, Duration, Outcome)| matches!(outcome, Outcome::Tested(0));
    if let Some(filter) = filter
        && results.iter().all(is_untested)
    {
        println!("no test has {filter} in its name");
        return ExitCode::FAILURE;
    }
    println!();
    let mut has_failed = false;
    for (name, time, outcome) in &results {
        let text = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Tested(count) => format!("passed, {count} tests"),
            Outcome::Failed(why) => format!("{FAILED}{why}"),
            Outcome::Missing(what) if is_ci => format!("FAILED, because it is missing: {what}"),
            Outcome::Missing(what) => format!("{MISSING}{what}"),
            Outcome::Postponed(why) => format!("NOT RUN: {why}"),
        };
        has_failed |= match outcome {
            Outcome::Passed | Outcome::Tested(_) | Outcome::Postponed(_) => false,
            Outcome::Failed(_) => true,
            Outcome::Missing(_) => is_ci,
        };
        println!("{name:<10} {:>6.1} s  {text}", time.as_secs_f64());
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn postponed(name: &str) -> Outcome {
    let minutes = LAST_STEP_BEGINS.as_secs() / 60;
    Outcome::Postponed(format!(
        "this run has lasted more than {minutes} minutes; cargo xtask test --only {name}"
    ))
}

/// Runs tests of [`ALONE`]'s packages from the programs that `is_selected` accepts.
fn alone(is_selected: impl Fn(&str) -> bool, filter: Option<&str>) -> Outcome {
    let programs = match test_targets::names(|package| !OPTIMISED.contains(&package)) {
        Ok(programs) => programs,
        Err(error) => return Outcome::Failed(error),
    };
    let programs = programs.iter().filter(|program| is_selected(program));
    let programs: Vec<String> = programs.map(|program| format!("--test={program}")).collect();
    let arguments = ALONE.into_iter().chain(programs.iter().map(String::as_str)).chain(filter);
    cargo_test(&arguments.collect::<Vec<_>>())
}

/// Runs parts until one does not pass, and adds up their tests.
fn in_turn<T>(parts: impl IntoIterator<Item = T>, run: impl Fn(T) -> Outcome) -> Outcome {
    let mut tests = 0;
    for part in parts {
        match run(part) {
            Outcome::Tested(more) => tests += more,
            outcome => return outcome,
        }
    }
    Outcome::Tested(tests)
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
