//! Builds for later steps, beside the tests of earlier ones: live tests mostly wait for timers. The builds are
//! in a directory of their own profile, so that they hold no lock that the tests' builds need.

use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use crate::claims::root;

/// Tests have the processor first.
pub(crate) const NICENESS: &str = "19";

pub(crate) struct Prebuild(JoinHandle<()>);

impl Prebuild {
    pub(crate) fn start(builds: Vec<Vec<String>>) -> Self {
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

    pub(crate) fn finish(self) {
        // A build that panics is one that the step makes itself.
        let _ = self.0.join();
    }
}

fn build_quietly(arguments: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new("nice");
    command.args(["-n", NICENESS, env!("CARGO")]).args(arguments).arg("--quiet").current_dir(root());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
