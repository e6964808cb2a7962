//! A member in its own process that takes commands: a JVM with a JGroups member, or a Consort member.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use consort_testbed::{KillOnDrop, brief_jvm};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::PATIENCE;
use crate::jgroups::{classpath, directory};
use crate::network::current_test;
use crate::setting::Setting;

/// The implementation of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// JGroups.
    Java,
    /// Consort.
    Consort,
}

/// A member, killed on drop.
pub struct Member {
    name: String,
    kind: Kind,
    child: KillOnDrop,
    input: ChildStdin,
    answers: mpsc::Receiver<Value>,
    views: watch::Receiver<u64>,
    log: PathBuf,
}

fn connect(setting: &Setting, name: &str) -> String {
    format!("connect {name} {} {}", setting.cluster, setting.config.display())
}

impl Setting {
    /// Starts a Java member.
    pub async fn java(&self, name: &str) -> Member {
        Member::start(self, Kind::Java, name).await
    }

    /// Starts a Consort member.
    pub async fn consort(&self, name: &str) -> Member {
        Member::start(self, Kind::Consort, name).await
    }

    /// Starts a member that the cluster refuses, and returns the error of its connect.
    ///
    /// # Panics
    ///
    /// If it connects.
    pub async fn refused(&self, kind: Kind, name: &str) -> String {
        Member::start_refused(self, kind, name).await
    }
}

impl Member {
    pub(crate) async fn start(setting: &Setting, kind: Kind, name: &str) -> Self {
        let mut member = Self::spawn(setting, kind, name);
        member.run(&connect(setting, name)).await;
        member
    }

    pub(crate) async fn start_refused(setting: &Setting, kind: Kind, name: &str) -> String {
        let mut member = Self::spawn(setting, kind, name);
        let answer = member.answer(&connect(setting, name), PATIENCE).await;
        answer["error"].as_str().unwrap_or_else(|| panic!("{name} is connected: {answer}")).to_owned()
    }

    fn spawn(setting: &Setting, kind: Kind, name: &str) -> Self {
        let logs = directory().join("logs");
        std::fs::create_dir_all(&logs).expect("a directory for logs");
        let log_path = logs.join(format!("{}-{}-{name}.log", current_test(), setting.cluster));
        let log = std::fs::File::create(&log_path).expect("a log");
        let properties = setting.properties.iter().map(|(name, value)| format!("-D{name}={value}"));
        let mut command = match kind {
            Kind::Java => java_command(setting.heap_mb, properties),
            Kind::Consort => {
                let mut command = Command::new(built("consort-member"));
                command.args(properties);
                command
            }
        };
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut child = KillOnDrop(child);
        let input = child.0.stdin.take().expect("its input");
        let output = BufReader::new(child.0.stdout.take().expect("its output"));
        // A command has one answer, and the next command waits for it.
        let (sender, answers) = mpsc::channel(1);
        let (view_count, views) = watch::channel(0);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some(json) = line.strip_prefix("@@ ") else { continue };
                let answer: Value =
                    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {line}"));
                if let Some(event) = answer.get("event") {
                    view_count.send_modify(|count| *count += u64::from(event == "view"));
                } else if sender.blocking_send(answer).is_err() {
                    break;
                }
            }
        });
        Self { name: name.to_owned(), kind, child, input, answers, views, log: log_path }
    }

    /// The logical name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The implementation of the member.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns what the member has logged.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Runs a command and returns its answer.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub async fn run(&mut self, command: &str) -> Value {
        self.run_within(command, PATIENCE).await
    }

    /// As [`Member::run`], with this timeout.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub async fn run_within(&mut self, command: &str, patience: Duration) -> Value {
        let answer = self.answer(command, patience).await;
        assert!(answer.get("error").is_none(), "`{command}` at {}: {answer}", self.name);
        answer
    }

    async fn answer(&mut self, command: &str, patience: Duration) -> Value {
        writeln!(self.input, "{command}").unwrap_or_else(|error| panic!("{}: {error}", self.name));
        match tokio::time::timeout(patience, self.answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("{} ended instead of answering `{command}`", self.name),
            Err(_) => panic!("{} does not answer `{command}`", self.name),
        }
    }

    /// The view's text.
    ///
    /// # Panics
    ///
    /// If the member does not answer.
    pub async fn view(&mut self) -> String {
        self.views.borrow_and_update();
        self.run("view").await["view"].as_str().expect("a view").to_owned()
    }

    /// Waits for another view than the one that was asked for last, or the member's end.
    pub async fn view_changed(&mut self) {
        let _ = self.views.changed().await;
    }

    /// Kills the process (`kill -9`), whose sockets the system closes.
    ///
    /// # Panics
    ///
    /// If it has ended already.
    pub fn kill(mut self) {
        let ended = self.child.0.try_wait().expect("its status");
        assert!(ended.is_none(), "{} ended by itself: {ended:?}", self.name);
        self.child.0.kill().expect("killed");
        let _ = self.child.0.wait();
    }

    /// Ends the member gracefully.
    pub async fn exit(mut self) {
        self.run("exit").await;
        let _ = self.child.0.wait();
    }
}

fn java_command(heap_mb: u32, properties: impl Iterator<Item = String>) -> Command {
    let mut command = brief_jvm();
    command
        .arg(format!("-Xmx{heap_mb}m"))
        .args(["-Xss512k", "-Djava.net.preferIPv4Stack=true"])
        .args(properties)
        .args(["-cp", &classpath(), "consort.interop.Member"]);
    command
}

/// A program that Cargo has put beside this test program.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test program");
    let program = test.parent().and_then(|deps| deps.parent()).expect("a target").join(name);
    assert!(
        program.exists(),
        "{} is not built: cargo xtask test --only interop builds it",
        program.display()
    );
    program
}
