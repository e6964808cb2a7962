//! Java interop: names a missing tool before the tests would fail.

use std::process::{Command, Stdio};

use crate::counted::cargo_test;
use crate::steps::Outcome;

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

const POSTGRESQL: &str = "PostgreSQL 14 or later: Debian's package postgresql";

/// Debian has PostgreSQL's programs here, in a directory per release.
const POSTGRESQL_DIRECTORY: &str = "/usr/lib/postgresql";

pub(crate) const TOOL: [&str; 4] = ["build", "--profile=quick", "--package", "consort-cli"];

/// Optimised, because ten thousand messages of 100 KB pass.
pub(crate) const TESTS: [&str; 6] =
    ["test", "--profile=quick", "--package", "consort-interop", "--package", "consort-bench"];

pub(crate) fn run(filter: Option<&str>) -> Outcome {
    let missing: Vec<String> = TOOLS
        .iter()
        .filter(|(tool, argument, package)| {
            !is_there(tool, argument) && !(*package == POSTGRESQL && is_of_debian(tool))
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
    let mut arguments: Vec<&str> = TESTS.into_iter().chain(filter).collect();
    // Three clusters at a time, because each waits for a while.
    arguments.extend(["--", "--test-threads=3"]);
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
