//! JVMs that are not measured.

use std::process::Command;

/// Without its second compiler and collector threads, a JVM that does little uses half the CPU time.
pub(crate) const BRIEF: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// Returns a command of a JVM that does little, without its program yet.
pub fn brief_jvm() -> Command {
    let mut java = Command::new("java");
    java.args(BRIEF);
    java
}
