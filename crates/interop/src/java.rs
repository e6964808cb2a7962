//! A JVM with a JGroups member that takes commands.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::PATIENCE;
use crate::jgroups::{classpath, directory};
use crate::network::current_test;
use crate::setting::Setting;

/// A Java member. Dropped, it is killed.
pub struct JavaMember {
    /// Its logical name.
    pub name: String,
    child: Child,
    input: ChildStdin,
    answers: mpsc::Receiver<Value>,
    /// Counts views.
    views: watch::Receiver<u64>,
}

impl JavaMember {
    pub(crate) async fn start(setting: &Setting, name: &str) -> Self {
        let logs = directory().join("logs");
        std::fs::create_dir_all(&logs).expect("a directory for logs");
        let log = format!("{}-{}-{name}.log", current_test(), setting.cluster);
        let log = std::fs::File::create(logs.join(log)).expect("a log");
        let mut child = Command::new("java")
            .args(["-Xmx512m", "-Xss512k", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
            .arg("-Djava.net.preferIPv4Stack=true")
            .args(setting.properties.iter().map(|(name, value)| format!("-D{name}={value}")))
            .args(["-cp", &classpath(), "consort.interop.Member"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("java starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        // A command has one answer, and the next command waits for it.
        let (told, answers) = mpsc::channel(1);
        let (viewed, views) = watch::channel(0);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some(json) = line.strip_prefix("@@ ") else { continue };
                let answer: Value =
                    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {line}"));
                if let Some(event) = answer.get("event") {
                    viewed.send_modify(|count| *count += u64::from(event == "view"));
                } else if told.blocking_send(answer).is_err() {
                    break;
                }
            }
        });
        let mut member = Self { name: name.to_owned(), child, input, answers, views };
        let connect = format!("connect {name} {} {}", setting.cluster, setting.config.display());
        let answer = member.run(&connect).await;
        assert!(answer.get("error").is_none(), "{name} does not connect: {answer}");
        member
    }

    pub(crate) async fn run(&mut self, command: &str) -> Value {
        writeln!(self.input, "{command}").expect("the JVM reads");
        match tokio::time::timeout(PATIENCE, self.answers.recv()).await {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("{} ended instead of answering `{command}`", self.name),
            Err(_) => panic!("{} does not answer `{command}`", self.name),
        }
    }

    pub(crate) fn views(&mut self) -> &mut watch::Receiver<u64> {
        &mut self.views
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        let _ = self.child.wait();
    }
}

impl Drop for JavaMember {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
