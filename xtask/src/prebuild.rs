//! Builds for later steps, beside the tests of earlier ones.
//!
//! Live tests wait for timers most of the time, and then the processors are free. The builds are in a directory of their own
//! profile, so that they hold no lock that the tests' own builds need.

use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use crate::claims::root;

/// How far the builds step back: a test that has something to do has the processor first.
const NICENESS: &str = "19";

/// Builds under way, one after the other.
pub(crate) struct Prebuild(JoinHandle<()>);

impl Prebuild {
    /// Runs cargo with each of these arguments.
    pub(crate) fn start(builds: Vec<Vec<&'static str>>) -> Self {
        Self(std::thread::spawn(move || {
            for build in builds {
                // The step that needs it builds it again, and shows what is wrong.
                if !build_quietly(&build)
                    .and_then(|mut child| child.wait())
                    .is_ok_and(|status| status.success())
                {
                    return;
                }
            }
        }))
    }

    /// Waits for them.
    pub(crate) fn finish(self) {
        // A build that panics is one that the step makes itself.
        let _ = self.0.join();
    }
}

fn build_quietly(arguments: &[&str]) -> std::io::Result<Child> {
    let mut command = Command::new("nice");
    command.args(["-n", NICENESS, env!("CARGO")]).args(arguments).arg("--quiet").current_dir(root());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
