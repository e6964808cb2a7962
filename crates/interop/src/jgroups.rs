//! JGroups' jar and the Java member's classes in `target/interop`, fetched and compiled when a test first asks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Set for a test that runs again in its own network, which Maven could not reach out of.
pub(crate) const DIRECTORY_VARIABLE: &str = "CONSORT_INTEROP";

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

/// Where everything lies: the configurations themselves, `lib` and `classes`.
///
/// # Panics
///
/// If it cannot be made: the text names what is missing.
pub(crate) fn directory() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => PathBuf::from(directory),
        None => prepare().unwrap_or_else(|why| panic!("Java interop: {why}")),
    });
    directory.clone()
}

/// The class path of the Java member.
pub(crate) fn classpath() -> String {
    let directory = directory();
    format!("{0}/classes:{0}/lib/*", directory.display())
}

fn prepare() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    let java = root.join("interop/java");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let directory = target.join("interop");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    // Two test programs may start at once.
    let lock = File::create(directory.join("lock")).map_err(|error| format!("the lock: {error}"))?;
    lock.lock().map_err(|error| format!("the lock: {error}"))?;

    let jar = directory.join(format!("lib/jgroups-{}.jar", release(&java.join("pom.xml"))?));
    if !jar.exists() {
        let mut fetch = Command::new("mvn");
        fetch.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]).arg(&java);
        fetch.arg(format!("-DoutputDirectory={}", directory.join("lib").display()));
        finish(fetch, "Maven, for JGroups")?;
    }
    let mut unpack = Command::new("jar");
    unpack.args(["--extract", "--file"]).arg(&jar).args(CONFIGURATIONS).current_dir(&directory);
    finish(unpack, "a JDK 17 or later")?;
    let mut compile = Command::new("javac");
    compile.args(["--release", "17", "-cp"]).arg(&jar).arg("-d").arg(directory.join("classes"));
    let sources = java.join("src/main/java/consort/interop");
    for entry in fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))? {
        compile.arg(entry.map_err(|error| format!("{}: {error}", sources.display()))?.path());
    }
    finish(compile, "a JDK 17 or later")?;
    Ok(directory)
}

/// The release that the project file names.
fn release(pom: &Path) -> Result<String, String> {
    let text = fs::read_to_string(pom).map_err(|error| format!("{}: {error}", pom.display()))?;
    let after = |text: &str, mark: &str| text.split_once(mark).map(|(_, rest)| rest.to_owned());
    after(&text, "<artifactId>jgroups</artifactId>")
        .and_then(|rest| after(&rest, "<version>"))
        .and_then(|rest| rest.split_once("</version>").map(|(version, _)| version.to_owned()))
        .ok_or_else(|| format!("{} names no release of JGroups", pom.display()))
}

fn finish(mut command: Command, need: &str) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`{program}` ({need}) does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("`{program}` ended with {}:\n{}", output.status, String::from_utf8_lossy(&said)))
}
