//! JVMs that are not measured.

use std::process::Command;

/// The options of a JVM that does little: without its second compiler and collector threads, it takes half the CPU time
/// for that.
pub(crate) const BRIEF: [&str; 2] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// A JVM that does little; what, is still to be said.
pub fn brief_jvm() -> Command {
    let mut java = Command::new("java");
    java.args(BRIEF);
    java
}
