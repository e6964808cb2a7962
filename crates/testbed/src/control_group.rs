//! A control group with a memory limit, of version 1 or 2, to start processes in.

use std::fs::{create_dir, read_to_string, remove_dir, write};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Files {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    events: &'static str,
}

const VERSIONS: [Files; 2] = [
    Files {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        events: "memory.oom_control",
    },
    Files { root: "/sys/fs/cgroup", limit: "memory.max", used: "memory.current", events: "memory.events" },
];

/// A control group, removed on drop, when its processes must have ended.
pub struct ControlGroup {
    directory: PathBuf,
    files: &'static Files,
}

impl ControlGroup {
    /// Makes a group whose processes together may use `limit` bytes. It needs root's right, or that of a
    /// container to which groups are delegated.
    ///
    /// # Errors
    ///
    /// If this system has no control groups for memory, or this process may make none.
    pub fn new(name: &str, limit: u64) -> io::Result<Self> {
        let name = format!("consort-{name}-{}", std::process::id());
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for files in &VERSIONS {
            let directory = Path::new(files.root).join(&name);
            if let Err(error) = create_dir(&directory) {
                failed = error;
                continue;
            }
            let group = Self { directory, files };
            match write(group.directory.join(files.limit), limit.to_string()) {
                Ok(()) => return Ok(group),
                Err(error) => failed = error,
            }
        }
        let what =
            format!("cannot make a control group for memory below /sys/fs/cgroup (run it as root): {failed}");
        Err(io::Error::new(failed.kind(), what))
    }

    /// Returns a command that runs this program in the group, with stderr merged into stdout.
    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let enter = "echo $$ > \"$0\" && exec \"$@\" 2>&1";
        command.args(["-c", enter]).arg(self.directory.join("cgroup.procs")).arg(program).args(arguments);
        command
    }

    /// Returns the number of processes killed for lack of memory.
    pub fn killed(&self) -> io::Result<u64> {
        let events = read_to_string(self.directory.join(self.files.events))?;
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.ok_or_else(|| io::Error::other("its events have no count of killed processes"))
    }

    /// Returns the bytes in use, including the page cache.
    pub fn used(&self) -> io::Result<u64> {
        let used = read_to_string(self.directory.join(self.files.used))?;
        used.trim().parse().map_err(io::Error::other)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that was just killed may still be in it.
        for _ in 0..100 {
            if remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
