//! Java interop: names a missing tool before the tests would fail.

use std::process::{Command, Stdio};

use crate::counted::cargo_test;
use crate::steps::{OPTIMISED, Outcome};
use crate::test_targets;

/// Tools of the tests, and a harmless argument.
const TOOLS: &[(&str, &str, &str)] = &[
    ("java", "-version", "a JDK, 17 or later"),
    ("javac", "-version", "a JDK, 17 or later"),
    ("jar", "--version", "a JDK, 17 or later"),
    ("mvn", "--version", "Maven"),
    ("node", "--version", "Node.js 20 or later"),
    ("npm", "--version", "npm"),
    ("go", "version", "Go 1.26 or later"),
    ("initdb", "--version", POSTGRESQL),
    ("postgres", "--version", POSTGRESQL),
    ("psql", "--version", POSTGRESQL),
    ("unshare", "--version", "util-linux"),
    ("prlimit", "--version", "util-linux"),
    ("setpriv", "--version", "util-linux"),
    ("ip", "-V", "iproute2"),
];

/// Tools of a cluster of Kubernetes.
const KUBERNETES_TOOLS: &[(&str, &str, &str)] = &[
    ("buildah", "--version", "Debian's package buildah"),
    ("containerd", "--version", "Debian's package containerd"),
    ("mmdebstrap", "--version", "Debian's package mmdebstrap"),
    ("nft", "--version", "Debian's package nftables"),
    ("runc", "--version", "Debian's package runc"),
    ("script", "--version", "Debian's package bsdutils"),
    ("/usr/lib/cni/bridge", "", "Debian's package containernetworking-plugins"),
];

const POSTGRESQL: &str = "PostgreSQL 14 or later: Debian's package postgresql";

/// Debian has PostgreSQL's programs here, in a directory per release.
const POSTGRESQL_DIRECTORY: &str = "/usr/lib/postgresql";

/// The command, and the example that joins Java members. Packages and kinds of targets are those of [`tests`], so that both have the
/// same features and share their builds; any test does.
pub(crate) const TOOL: [&str; 9] = [
    "build",
    "--profile=quick",
    "--package=consort-cli",
    "--package=consort-examples",
    "--package=consort-interop",
    "--package=consort-bench",
    "--bin=consort",
    "--bin=jgroups_member",
    "--test=tls",
];

/// Optimised, because ten thousand messages of 100 KB pass.
const TESTS: [&str; 6] = ["test", TOOL[1], TOOL[2], TOOL[3], TOOL[4], TOOL[5]];

/// Returns the arguments for the tests of the programs that `is_selected` accepts.
///
/// # Errors
///
/// A text if `cargo metadata` fails.
pub(crate) fn tests(is_selected: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let programs = test_targets::names(|package| OPTIMISED.contains(&package))?;
    let selected = programs.iter().filter(|program| is_selected(program));
    let selected = selected.map(|program| format!("--test={program}"));
    Ok(TESTS.into_iter().map(str::to_owned).chain(selected).collect())
}

const JGROUPS: &[&str] = &[
    "building_blocks",
    "chaos",
    "configurations",
    "databases",
    "encryption",
    "jgroups",
    "protocols",
    "routers",
    "sites",
    "tls",
    "total_order",
];

const HOTROD: &[&str] = &["client", "hotrod", "server_files"];

const BENCH: &str = "quick";

const KUBERNETES: &str = "pods";

/// Clusters with JGroups' members.
pub(crate) fn jgroups(filter: Option<&str>) -> Outcome {
    run(TOOLS, |program| JGROUPS.contains(&program), filter)
}

/// Hot Rod: Infinispan's clients with our server, and our client with Infinispan's.
pub(crate) fn hotrod(filter: Option<&str>) -> Outcome {
    run(TOOLS, |program| HOTROD.contains(&program), filter)
}

/// The bench beside the peers that it measures.
pub(crate) fn bench(filter: Option<&str>) -> Outcome {
    run(TOOLS, |program| program == BENCH, filter)
}

/// A real Kubernetes with the image and the chart.
pub(crate) fn kubernetes(filter: Option<&str>) -> Outcome {
    run(&[TOOLS, KUBERNETES_TOOLS].concat(), |program| program == KUBERNETES, filter)
}

/// The tests of [`kubernetes`] that take minutes each: twenty starts of a Deployment, and a token that expires.
pub(crate) fn kubernetes_long(filter: Option<&str>) -> Outcome {
    let tools = [TOOLS, KUBERNETES_TOOLS].concat();
    run_with(&tools, |program| program == KUBERNETES, filter, &["--ignored"])
}

/// All other programs: the server's processes, the command's tools, the chart.
pub(crate) fn processes(filter: Option<&str>) -> Outcome {
    let is_elsewhere = |program: &str| {
        [BENCH, KUBERNETES].contains(&program) || JGROUPS.contains(&program) || HOTROD.contains(&program)
    };
    run(TOOLS, |program| !is_elsewhere(program), filter)
}

fn run(tools: &[(&str, &str, &str)], is_selected: impl Fn(&str) -> bool, filter: Option<&str>) -> Outcome {
    run_with(tools, is_selected, filter, &[])
}

fn run_with(
    tools: &[(&str, &str, &str)],
    is_selected: impl Fn(&str) -> bool,
    filter: Option<&str>,
    options: &[&str],
) -> Outcome {
    let missing: Vec<String> = tools
        .iter()
        .filter(|(tool, argument, package)| {
            !(is_there(tool, argument) || *package == POSTGRESQL && is_of_debian(tool))
        })
        .map(|(tool, _, package)| format!("`{tool}` ({package})"))
        .collect();
    if !missing.is_empty() {
        return Outcome::Missing(missing.join(", "));
    }
    match crate::steps::cargo(&TOOL) {
        Outcome::Passed => {}
        other => return other,
    }
    let mut arguments = match tests(is_selected) {
        Ok(arguments) => arguments,
        Err(error) => return Outcome::Failed(error),
    };
    arguments.extend(filter.map(str::to_owned));
    // Three clusters at a time, because each waits for a while.
    arguments.extend(["--", "--test-threads=3"].map(str::to_owned));
    arguments.extend(options.iter().copied().map(str::to_owned));
    cargo_test(&arguments)
}

/// Returns whether Debian's package has a program, which is not on the path.
fn is_of_debian(tool: &str) -> bool {
    let releases = std::fs::read_dir(POSTGRESQL_DIRECTORY).into_iter().flatten().flatten();
    releases.map(|release| release.path().join("bin").join(tool)).any(|program| program.exists())
}

pub(crate) fn is_there(tool: &str, argument: &str) -> bool {
    Command::new(tool)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
