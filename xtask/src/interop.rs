//! Java interop: fetches JGroups, compiles the Java member, and runs the tests in a network of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::steps::{Outcome, status};

/// The JGroups release that we are measured against.
const JGROUPS: &str = "5.5.7.Final";

/// Its configuration files that the tests load unchanged.
const CONFIGURATIONS: &[&str] = &[
    "tcp.xml",
    "udp.xml",
    "tcp-nio.xml",
    "tcp-new.xml",
    "udp-new.xml",
    "sequencer.xml",
    "tcp-default.xml",
    "udp-default.xml",
    "nio-default.xml",
];

/// Makes a network namespace with a loopback that multicasts; the rest are the test's words.
const NAMESPACE: &str = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && exec \"$@\"";

pub(crate) fn run(filter: Option<&str>) -> Outcome {
    for (tool, argument) in [
        ("java", "-version"),
        ("javac", "-version"),
        ("mvn", "-version"),
        ("unshare", "--version"),
        ("ip", "-V"),
    ] {
        if !has(tool, argument) {
            return Outcome::Missing(format!(
                "`{tool}` (JDK 17 or later, Maven, util-linux and iproute2 are needed)"
            ));
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let directory = root.join("target/interop");
    if let Err(why) = prepare(root, &directory) {
        return Outcome::Failed(why);
    }
    let mut command = Command::new("unshare");
    // Without root a user namespace of our own makes us root in it.
    command.arg(if is_root() { "-n" } else { "-rn" });
    command.args(["sh", "-c", NAMESPACE, "sh", env!("CARGO")]);
    // One cluster at a time: a JVM keeps a core busy while it starts.
    command.args([
        "test",
        "--offline",
        "--release",
        "--package",
        "consort-interop",
        "--",
        "--test-threads=1",
    ]);
    command.args(filter).env("CONSORT_INTEROP", &directory);
    // Everything that needs the outside is built before the namespace cuts it off.
    let build = crate::steps::cargo(&["test", "--release", "--package", "consort-interop", "--no-run"]);
    match build {
        Outcome::Passed => status(command),
        other => other,
    }
}

fn has(tool: &str, argument: &str) -> bool {
    Command::new(tool).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Puts the jar, its configurations and the compiled member into the directory, as far as they are not there.
fn prepare(root: &Path, directory: &Path) -> Result<(), String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("target/interop: {error}"))?;
    let jar = directory.join("jgroups.jar");
    if !jar.exists() {
        println!("fetching org.jgroups:jgroups:{JGROUPS}");
        let mut fetch = Command::new("mvn");
        fetch.args([
            "--quiet",
            "--batch-mode",
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy",
        ]);
        fetch.arg(format!("-Dartifact=org.jgroups:jgroups:{JGROUPS}"));
        fetch.arg(format!("-DoutputDirectory={}", directory.display()));
        finish(fetch)?;
        let fetched = directory.join(format!("jgroups-{JGROUPS}.jar"));
        std::fs::rename(&fetched, &jar).map_err(|error| format!("the fetched jar: {error}"))?;
    }
    let mut unpack = Command::new("jar");
    unpack.args(["--extract", "--file"]).arg(&jar).args(CONFIGURATIONS).current_dir(directory);
    finish(unpack)?;
    let source: PathBuf = root.join("interop/java/consort/interop/Member.java");
    let mut compile = Command::new("javac");
    compile.arg("-cp").arg(&jar).arg("-d").arg(directory.join("classes")).arg(source);
    finish(compile)
}

fn finish(mut command: Command) -> Result<(), String> {
    match status(std::mem::replace(&mut command, Command::new("true"))) {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) | Outcome::Missing(why) => Err(why),
    }
}
