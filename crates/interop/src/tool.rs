//! The `consort` command and JGroups' demos as processes, driven by lines. Functions panic if the command has
//! not been built with the same profile, does not start, or does not do as expected.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use consort_testbed::{KillOnDrop, brief_jvm};

use crate::jgroups::classpath;
use crate::member::built;
use crate::{PATIENCE, Setting};

/// A process, killed on drop.
pub struct Tool {
    child: KillOnDrop,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All lines of output so far.
    pub output: Vec<String>,
}

impl Tool {
    /// Starts the `consort` command beside this test program.
    pub fn consort(arguments: &[&str]) -> Self {
        let mut command = Command::new(built("consort"));
        command.args(arguments);
        Self::start(command)
    }

    /// Starts the `consort` command with its log among the lines of output.
    pub fn consort_with_log(arguments: &[&str]) -> Self {
        Self::consort_started_by(&[], arguments)
    }

    /// Starts the `consort` command by a wrapper that takes a command and its arguments after its own, like `prlimit`.
    pub fn consort_started_by(starter: &[&str], arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        // The first word of all is `$0`.
        command.args(["-c", "exec \"$@\" 2>&1", "sh"]).args(starter).arg(built("consort")).args(arguments);
        Self::start(command)
    }

    /// Starts the `consort` command with its own table of hosts, in the format of `/etc/hosts`, which may
    /// change meanwhile. It needs `unshare` and `mount` of util-linux.
    pub fn consort_with_hosts(hosts: &Path, arguments: &[String]) -> Self {
        let mut command = Command::new("unshare");
        let enter = "mount --bind \"$0\" /etc/hosts && exec \"$@\" 2>&1";
        // A name may have several lines in it.
        command.env("RESOLV_MULTI", "on");
        command.args(["-m", "sh", "-c", enter]).arg(hosts).arg(built("consort")).args(arguments);
        Self::start(command)
    }

    /// Starts a program of the package of examples with a setting's properties in its environment.
    pub fn example(setting: &Setting, name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(built(name));
        let variables =
            setting.properties.iter().map(|(name, value)| (name.to_uppercase().replace('.', "_"), value));
        command.args(arguments).envs(variables);
        Self::start(command)
    }

    /// Runs the `consort` command without input to its end.
    pub fn run_consort(arguments: &[&str]) -> Output {
        let run = Command::new(built("consort")).args(arguments).stdin(Stdio::null()).output();
        run.unwrap_or_else(|error| panic!("consort {arguments:?}: {error}"))
    }

    /// Runs the `consort` command to its end, with its output redirected.
    pub fn run_consort_into(output: impl Into<Stdio>, arguments: &[&str]) -> Output {
        let mut command = Command::new(built("consort"));
        let run = command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(Stdio::piped()).spawn();
        let run = run.and_then(std::process::Child::wait_with_output);
        run.unwrap_or_else(|error| panic!("consort {arguments:?}: {error}"))
    }

    /// Starts the `consort` command as a member of a setting's cluster.
    pub fn consort_member(setting: &Setting, arguments: &[&str]) -> Self {
        let mut all: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        all.push(format!("--config={}", setting.config.display()));
        all.extend(setting.properties.iter().map(|(name, value)| format!("-D{name}={value}")));
        Self::consort(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a class of JGroups' jar.
    pub fn java(setting: &Setting, class: &str, arguments: &[&str]) -> Self {
        let mut command = brief_jvm();
        command
            .args(["-Xmx256m", "-Djava.net.preferIPv4Stack=true"])
            .args(setting.properties.iter().map(|(name, value)| format!("-D{name}={value}")))
            .args(["-cp", &classpath(), class])
            .args(arguments);
        Self::start(command)
    }

    /// Starts any command.
    pub fn start(mut command: Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut child = KillOnDrop(child);
        let input = child.0.stdin.take();
        let output = BufReader::new(child.0.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, input, lines, output: Vec::new() }
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends a line.
    pub fn type_line(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("its input"), "{line}").expect("it reads");
    }

    /// Sends SIGTERM and waits for a successful end.
    pub fn terminate(mut self) {
        let pid = self.child.0.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill (util-linux)");
        assert!(sent.success(), "no signal for {pid}");
        self.wait_for_end();
    }

    /// Ends its input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Sends a signal, by name.
    pub fn signal(&self, name: &str) {
        let id = self.child.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().expect("`kill`");
        assert!(sent.success(), "kill -s {name}: {sent}");
    }

    /// Waits for a line that contains all of this.
    pub fn wait_for(&mut self, wanted: &[&str]) -> String {
        let line = self.wait_for_or_end(wanted);
        line.unwrap_or_else(|| panic!("no line with {wanted:?} in:\n{}", self.output.join("\n")))
    }

    /// Waits for a line that contains all of this, or for the end of its output: none then.
    pub fn wait_for_or_end(&mut self, wanted: &[&str]) -> Option<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.output.push(line.clone());
                    if wanted.iter().all(|wanted| line.contains(wanted)) {
                        return Some(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no line with {wanted:?} in:\n{}", self.output.join("\n"))
                }
            }
        }
    }

    /// Waits until the process has ended, with any status.
    pub fn wait_for_death(&mut self) {
        self.child.0.wait().expect("its end");
    }

    /// Waits for a successful end.
    pub fn wait_for_end(&mut self) {
        let until = Instant::now() + PATIENCE;
        // Its output ends with it.
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.output.push(line);
        }
        assert!(Instant::now() < until, "it has not ended after:\n{}", self.output.join("\n"));
        let status = self.child.0.wait().expect("its end");
        assert!(status.success(), "{status} after:\n{}", self.output.join("\n"));
    }
}
