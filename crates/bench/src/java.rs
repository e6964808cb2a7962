//! JVMs with a member each: of JGroups, or of a data grid (`interop/java`, `consort.bench.Bench`,
//! `consort.grid.Member`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use consort_procstat::process;
use consort_testbed::{Jar, JavaGrid, KillOnDrop};
use hdrhistogram::Histogram;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::sample::{Latency, Sample};

#[derive(Clone, Debug)]
pub(crate) struct Jdk {
    pub(crate) java: PathBuf,
    pub(crate) version: u32,
}

/// The first release with virtual threads.
pub(crate) const VIRTUAL_THREADS: u32 = 21;

/// In JAVA_HOME, or the newest one beside that of the `java` on the PATH.
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

fn jdk(home: &Path) -> Option<Jdk> {
    let java = home.join("bin/java");
    let release = std::fs::read_to_string(home.join("release")).ok()?;
    let version = java.is_file().then(|| feature(&release)).flatten()?;
    Some(Jdk { java, version })
}

/// 25 for `JAVA_VERSION="25.0.3"`.
fn feature(release: &str) -> Option<u32> {
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

pub(crate) struct Jvms<'a> {
    pub(crate) jdk: &'a Jdk,
    pub(crate) jar: &'a Jar,
    pub(crate) classpath: String,
    pub(crate) heap: &'a str,
    pub(crate) members: usize,
}

/// Killed on drop. JVMs are stopped between requests, because idle ones of two grids take a sixth of two
/// CPUs.
pub(crate) struct JavaCluster {
    members: Vec<Jvm>,
    pub(crate) version: String,
}

/// Longer than JGroups' own limits for joining and for a call.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cold JVM needs this time from a line to the load, to start a hundred threads on two CPUs.
const START_AFTER: Duration = Duration::from_millis(300);

impl JavaCluster {
    pub(crate) fn start(jvms: &Jvms<'_>, test: &str, config: &str) -> anyhow::Result<Self> {
        Self::complete(jvms.members, |nth| Jvm::member(jvms, test, config, nth))
    }

    pub(crate) fn start_grid(jvms: &Jvms<'_>, grid: JavaGrid) -> anyhow::Result<Self> {
        Self::complete(jvms.members, |nth| Jvm::grid_member(jvms, grid, nth))
    }

    fn complete(members: usize, start: impl Fn(usize) -> anyhow::Result<Jvm>) -> anyhow::Result<Self> {
        let mut all = vec![start(0)?];
        // The others find a coordinator instead of electing one of several.
        all[0].answer()?;
        for nth in 1..members {
            all.push(start(nth)?);
        }
        for member in &mut all[1..] {
            member.answer()?;
        }
        let mut version = String::new();
        for member in &mut all {
            version = member.release()?;
        }
        let cluster = Self { members: all, version };
        cluster.signal(Signal::STOP)?;
        Ok(cluster)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        for member in &self.members {
            let pid = Pid::from_child(&member.child.0);
            kill_process(pid, signal).with_context(|| format!("a JVM's signal, {}", member.log.display()))?;
        }
        Ok(())
    }

    fn awake<T>(&mut self, what: impl FnOnce(&mut Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.signal(Signal::CONT)?;
        let done = what(self)?;
        self.signal(Signal::STOP)?;
        Ok(done)
    }

    pub(crate) fn ask_first(&mut self, line: &str) -> anyhow::Result<Value> {
        self.awake(|cluster| {
            cluster.members[0].say(line)?;
            cluster.members[0].answer()
        })
    }

    pub(crate) fn cpu_s(&self) -> f64 {
        self.members.iter().map(|member| process::cpu_of(member.child.0.id()).as_secs_f64()).sum()
    }

    pub(crate) fn peak_memory_mb(&self) -> f64 {
        self.members.iter().map(|member| process::peak_memory_mb_of(member.child.0.id())).fold(0.0, f64::max)
    }

    /// The load begins at a set time: otherwise busy threads of one member would hold up those of another, and
    /// each would measure while it has the machine for itself.
    pub(crate) fn run(&mut self, slice: &str) -> anyhow::Result<Sample> {
        self.awake(|cluster| cluster.load(slice))
    }

    fn load(&mut self, slice: &str) -> anyhow::Result<Sample> {
        let start = SystemTime::now() + START_AFTER * self.members.len() as u32;
        let start = start.duration_since(UNIX_EPOCH)?.as_millis();
        for member in &mut self.members {
            member.say(&format!("{slice} start_ms={start}"))?;
        }
        let mut latencies = histogram();
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
            add_latencies(&answer, &mut latencies)?;
        }
        if operations == 0.0 {
            bail!("JVMs did nothing, {}", self.members[0].log.display());
        }
        Ok(Sample {
            rate: rate / self.members.len() as f64,
            cpu_us: cpu * 1e6 / operations,
            latency: (!latencies.is_empty()).then(|| Latency::of(&latencies)),
            rss_mb: self.peak_memory_mb(),
            errors,
        })
    }
}

/// 100 ns to 60 s with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds that fit")
}

pub(crate) fn add_latencies(answer: &Value, to: &mut Histogram<u64>) -> anyhow::Result<()> {
    for cell in answer["latencies"].as_array().into_iter().flatten() {
        let (value, count) = (cell[0].as_u64(), cell[1].as_u64());
        let (value, count) = value.zip(count).context("a cell of a histogram")?;
        to.saturating_record_n(value, count);
    }
    Ok(())
}

/// Members stay up while Consort runs: on the stock port the kernel would deliver Consort's multicasts to them.
const JGROUPS_MCAST_PORT: u16 = 45_599;

/// Hazelcast recommends these options in its log; it is slower without.
pub(crate) const HAZELCAST_OPENS: [&str; 6] = [
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
];

/// Answers each line with a line of JSON. Killed on drop.
pub(crate) struct Jvm {
    child: KillOnDrop,
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

    pub(crate) fn grid_member(jvms: &Jvms<'_>, grid: JavaGrid, nth: usize) -> anyhow::Result<Self> {
        let (name, members) = (format!("J{nth}"), jvms.members.to_string());
        let program = ["consort.grid.Member", grid.name(), &name, &members];
        // Infinispan answers from virtual threads, its default, and asks one owner at a time: on a machine whose CPUs are all
        // busy, asking the second one after a while only doubles the work.
        let mut properties = vec![
            "-Djava.net.preferIPv4Stack=true",
            "-Djgroups.bind.address=127.0.0.1",
            "-Dorg.infinispan.threads.virtual=true",
            "-Dinfinispan.stagger.delay=5000",
        ];
        if grid == JavaGrid::Hazelcast {
            properties.extend(HAZELCAST_OPENS);
        }
        let log = format!("grid-{}-{}-{nth}.log", grid.name(), jvms.members);
        Self::start(jvms, &properties, &program, &log)
    }

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
            .args(["-cp", &jvms.classpath])
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", jvms.jdk.java.display()))?;
        let mut child = KillOnDrop(child);
        let (input, output) = (child.0.stdin.take(), child.0.stdout.take());
        let (input, output) = input.zip(output).context("a JVM's pipes")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for answer in lines.filter_map(|line| serde_json::from_str(line.strip_prefix("@@ ")?).ok()) {
                if sender.send(answer).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, answers, log })
    }

    pub(crate) fn release(&mut self) -> anyhow::Result<String> {
        let ready = self.answer()?;
        let word = |name: &str| ready[name].as_str().unwrap_or("?").to_owned();
        Ok(format!("{} on Java {} ({})", word("product"), word("java"), word("vm")))
    }

    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}").with_context(|| format!("a JVM ended, {}", self.log.display()))
    }

    pub(crate) fn answer(&mut self) -> anyhow::Result<Value> {
        let answer = self.answers.recv_timeout(PATIENCE);
        let answer: Value = answer.with_context(|| format!("no answer of a JVM, {}", self.log.display()))?;
        match answer.get("error") {
            Some(error) => bail!("a JVM: {error}, {}", self.log.display()),
            None => Ok(answer),
        }
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
