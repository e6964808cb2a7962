//! The jar that the tests of this process use.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use consort_testbed::{Jar, brief_jvm};

/// Set for a test that runs again in its own network, where Maven cannot reach other hosts.
pub(crate) const DIRECTORY_VARIABLE: &str = "CONSORT_INTEROP";

/// # Panics
///
/// If the jar cannot be fetched; the text names the missing tool.
fn jar() -> &'static Jar {
    static JAR: OnceLock<Jar> = OnceLock::new();
    JAR.get_or_init(|| match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) => Jar::in_directory(directory),
        None => Jar::prepare().unwrap_or_else(|why| panic!("Java interop: {why}")),
    })
}

pub(crate) fn directory() -> PathBuf {
    jar().directory().to_owned()
}

pub(crate) fn classpath() -> String {
    jar().classpath()
}

/// Returns the directory of JGroups' jar and of those that its members need.
pub fn java_libraries() -> PathBuf {
    directory().join("lib")
}

/// One of our Java programs.
pub fn java_program(class: &str) -> Command {
    let mut command = brief_jvm();
    command.args(["-cp", &classpath(), class]);
    command
}
