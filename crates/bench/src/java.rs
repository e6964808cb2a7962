//! JVMs with a JGroups member each (`interop/java`, `consort.bench.Bench`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use consort_jgroups::{Jar, Killed};
use hdrhistogram::Histogram;
use serde_json::Value;

use crate::sample::{Latency, Sample};

/// A Java runtime.
#[derive(Clone, Debug)]
pub(crate) struct Jdk {
    pub(crate) java: PathBuf,
    pub(crate) version: u32,
}

/// The first release that has virtual threads.
pub(crate) const VIRTUAL_THREADS: u32 = 21;

/// The JDK in JAVA_HOME; without it, the newest of those that lie beside the one whose `java` is on the PATH.
pub(crate) fn find() -> anyhow::Result<Jdk> {
    if let Some(home) = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty()) {
        let home = PathBuf::from(home);
        return jdk(&home).with_context(|| format!("JAVA_HOME is {}, and no JDK", home.display()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let java = std::env::split_paths(&path)
        .map(|directory| directory.join("java"))
        .find(|java| java.is_file())
        .context("no `java` on the PATH, and no JAVA_HOME: a JDK 17 or later is missing")?;
    let java = java.canonicalize().with_context(|| format!("{}", java.display()))?;
    // <all JDKs>/<one JDK>/bin/java
    let own = java.ancestors().nth(2);
    let beside = own.and_then(Path::parent).and_then(|all| all.read_dir().ok());
    let others = beside.into_iter().flatten().filter_map(|entry| jdk(&entry.ok()?.path()));
    others
        .chain(own.and_then(jdk))
        .max_by_key(|jdk| jdk.version)
        .with_context(|| format!("{} belongs to no JDK that says its release", java.display()))
}

/// The JDK in a directory, if there is one: its file `release` says which.
fn jdk(home: &Path) -> Option<Jdk> {
    let java = home.join("bin/java");
    let release = std::fs::read_to_string(home.join("release")).ok()?;
    let version = java.is_file().then(|| feature(&release)).flatten()?;
    Some(Jdk { java, version })
}

/// 25 of `JAVA_VERSION="25.0.3"`.
fn feature(release: &str) -> Option<u32> {
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// How the JVMs are started.
pub(crate) struct Jvms<'a> {
    pub(crate) jdk: &'a Jdk,
    pub(crate) jar: &'a Jar,
    pub(crate) heap: &'a str,
    pub(crate) members: usize,
}

/// JVMs that have formed a cluster. They are killed when dropped.
pub(crate) struct JavaCluster {
    members: Vec<Jvm>,
    /// Release of JGroups and of Java, as they say it.
    pub(crate) version: String,
}

/// Longer than JGroups' own limits for joining and for a call.
const PATIENCE: Duration = Duration::from_secs(120);

impl JavaCluster {
    /// Starts a cluster that makes calls (`rpc`) or multicasts, and waits until it is complete.
    pub(crate) fn start(jvms: &Jvms<'_>, test: &str, config: &str) -> anyhow::Result<Self> {
        let mut members = vec![Jvm::member(jvms, test, config, 0)?];
        // The others find a coordinator instead of electing one of several.
        members[0].answer()?;
        for nth in 1..jvms.members {
            members.push(Jvm::member(jvms, test, config, nth)?);
        }
        for member in &mut members[1..] {
            member.answer()?;
        }
        let mut version = String::new();
        for member in &mut members {
            let ready = member.answer()?;
            let word = |name: &str| ready[name].as_str().unwrap_or("?").to_owned();
            version = format!("JGroups {} on Java {} ({})", word("jgroups"), word("java"), word("vm"));
        }
        Ok(Self { members, version })
    }

    /// One run of load on all members at once.
    pub(crate) fn run(&mut self, slice: &str) -> anyhow::Result<Sample> {
        for member in &mut self.members {
            member.say(slice)?;
        }
        let mut latencies = Histogram::<u64>::new_with_bounds(100, 60_000_000_000, 3)?;
        let (mut rate, mut operations, mut cpu, mut errors) = (0.0, 0.0, 0.0, 0);
        for member in &mut self.members {
            let answer = member.answer()?;
            let number = |name: &str| {
                answer[name]
                    .as_f64()
                    .with_context(|| format!("no {name} in an answer of {}", member.log.display()))
            };
            let own = number("operations")?;
            rate += own / number("seconds")?;
            operations += own;
            cpu += number("cpu_s")?;
            errors += number("errors")? as u64;
            for cell in answer["latencies"].as_array().into_iter().flatten() {
                let (value, count) = (cell[0].as_u64(), cell[1].as_u64());
                let (value, count) = value.zip(count).context("a cell of a histogram")?;
                latencies.saturating_record_n(value, count);
            }
        }
        if operations == 0.0 {
            bail!("JGroups did nothing, {}", self.members[0].log.display());
        }
        let rss_mb = self.members.iter().map(Jvm::peak_memory_mb).fold(0.0, f64::max);
        Ok(Sample {
            rate: rate / self.members.len() as f64,
            cpu_us: cpu * 1e6 / operations,
            latency: (!latencies.is_empty()).then(|| Latency::of(&latencies)),
            rss_mb,
            errors,
        })
    }
}

/// JGroups' members stay up, idle, while Consort runs: on the stock port they would read all that Consort multicasts.
const JGROUPS_MCAST_PORT: u16 = 45_599;

/// A JVM that takes lines and answers each with a line of JSON. It is killed when dropped.
pub(crate) struct Jvm {
    child: Killed,
    input: ChildStdin,
    answers: Receiver<Value>,
    log: PathBuf,
}

impl Jvm {
    fn member(jvms: &Jvms<'_>, test: &str, config: &str, nth: usize) -> anyhow::Result<Self> {
        let hosts: Vec<String> = (0..jvms.members).map(|nth| format!("127.0.0.1[{}]", 7_800 + nth)).collect();
        let hosts = format!("-Djgroups.tcpping.initial_hosts={}", hosts.join(","));
        let (name, members) = (format!("J{nth}"), jvms.members.to_string());
        let program = ["consort.bench.Bench", test, &name, "bench", config, &members];
        let port = format!("-Djgroups.udp.mcast_port={JGROUPS_MCAST_PORT}");
        let properties = ["-Djava.net.preferIPv4Stack=true", "-Djgroups.bind_addr=127.0.0.1", &hosts, &port];
        Self::start(jvms, &properties, &program, &format!("bench-{test}-{config}-{nth}.log"))
    }

    /// Starts a class with its arguments; what it complains of goes to the log.
    pub(crate) fn start(
        jvms: &Jvms<'_>,
        properties: &[&str],
        program: &[&str],
        log: &str,
    ) -> anyhow::Result<Self> {
        let logs = jvms.jar.directory().join("logs");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(log);
        let child = Command::new(&jvms.jdk.java)
            .arg(format!("-Xms{}", jvms.heap))
            .arg(format!("-Xmx{}", jvms.heap))
            .args(properties)
            .args(["-cp", &jvms.jar.classpath()])
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", jvms.jdk.java.display()))?;
        let mut child = Killed(child);
        let (input, output) = (child.0.stdin.take(), child.0.stdout.take());
        let (input, output) = input.zip(output).context("a JVM's pipes")?;
        let (told, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for answer in lines.filter_map(|line| serde_json::from_str(line.strip_prefix("@@ ")?).ok()) {
                if told.send(answer).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, answers, log })
    }

    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}").with_context(|| format!("a JVM ended, {}", self.log.display()))
    }

    pub(crate) fn answer(&mut self) -> anyhow::Result<Value> {
        let answer = self.answers.recv_timeout(PATIENCE);
        let answer: Value = answer.with_context(|| format!("no answer of a JVM, {}", self.log.display()))?;
        match answer.get("error") {
            Some(error) => bail!("JGroups: {error}, {}", self.log.display()),
            None => Ok(answer),
        }
    }

    fn peak_memory_mb(&self) -> f64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kilobytes.unwrap_or_default() / 1_000.0
    }
}

#[cfg(test)]
mod tests {
    use super::feature;

    #[test]
    fn a_jdk_says_its_release() {
        assert_eq!(feature("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"25.0.3\"\n"), Some(25));
        assert_eq!(feature("JAVA_VERSION=\"17\""), Some(17));
        assert_eq!(feature("VERSION=\"17\""), None);
    }
}
