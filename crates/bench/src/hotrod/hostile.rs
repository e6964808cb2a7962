//! A server under attack by unauthenticated clients.
//!
//! Attackers run only while a CPU is idle (SCHED_IDLE), because on a network they are other machines. The
//! legitimate client's load is steady and far below the machine's limit: with no CPU to spare, each delay would
//! be a wait for a CPU.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use consort_testbed::KillOnDrop;
use serde::Serialize;
use serde_json::Value;

use super::server_process::ServerProcess;
use super::{P50, P99, P999, Pairs, READS, SERVER_CPU_US, SIZE};
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::Runs;
use crate::targets::{Rival, Row, SERVER_CPU, Target};
use crate::tools::{self, Steady};

const USER: &str = "alice";
const PASSWORD: &str = "wonderland";

/// 3.6 million an hour.
const GUESSES_SEC: u32 = 1_000;

/// The limit of p99 beside p99 without attackers (issue's bound: at most doubled).
const TARGET: f64 = 2.0;

const KILOBYTES_MAX: f64 = 65.536;

/// The server's memory stays the same for this time.
const SETTLED: Duration = Duration::from_millis(300);

const SETTLING_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum HandshakeLoad {
    Connections(usize),
    BadPasswords,
    FastBadPasswords,
}

impl HandshakeLoad {
    fn name(self) -> String {
        match self {
            Self::Connections(count) => format!("{count} strangers at once"),
            Self::BadPasswords => format!("{GUESSES_SEC} wrong passwords a second"),
            Self::FastBadPasswords => "wrong passwords, as fast as they are answered".to_owned(),
        }
    }

    fn arguments(self) -> Vec<String> {
        match self {
            Self::Connections(count) => vec!["connections".to_owned(), format!("--count={count}")],
            Self::BadPasswords => {
                vec!["bad-passwords".to_owned(), format!("--user={USER}"), format!("--rate={GUESSES_SEC}")]
            }
            Self::FastBadPasswords => vec!["bad-passwords".to_owned(), format!("--user={USER}")],
        }
    }

    const fn figures(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Connections(_) => {
                &[("connections/s", "/opened_sec"), ("ms until all are open", "/opening_ms")]
            }
            Self::BadPasswords | Self::FastBadPasswords => {
                &[("refused/s, SCRAM", "/scram_sec"), ("refused/s, PLAIN", "/plain_sec")]
            }
        }
    }
}

#[derive(Serialize)]
struct VictimClient {
    by: HandshakeLoad,
    client: Pairs,
    handshake_load: Vec<Value>,
    connected_ms: Vec<f64>,
}

#[derive(Serialize)]
struct Record {
    alone: Pairs,
    connected_ms: Vec<f64>,
    victim: Vec<VictimClient>,
    /// Of an unauthenticated connection with an unfinished request.
    kilobytes_each: Vec<f64>,
}

pub(crate) fn hostile(options: &Options, results: &mut Results<'_>) {
    let all = [
        HandshakeLoad::Connections(options.handshakes()),
        HandshakeLoad::BadPasswords,
        HandshakeLoad::FastBadPasswords,
    ];
    let victim = |by| VictimClient {
        by,
        client: Pairs::default(),
        handshake_load: Vec::new(),
        connected_ms: Vec::new(),
    };
    let mut record = Record {
        alone: Pairs::default(),
        connected_ms: Vec::new(),
        victim: all.map(victim).into(),
        kilobytes_each: Vec::new(),
    };
    let mut outcome = Outcome::default();
    for run in 1..=options.runs() {
        if let Err(error) = once(options, run, &mut record) {
            outcome.failures.push(error);
            break;
        }
        results.keep("hostile", &record);
    }
    let victim = record.victim.iter().map(|one| one.client.errors());
    outcome.errors = record.alone.errors() + victim.sum::<u64>();
    outcome.rows = rows(&record, options.handshakes());
    report::print_rows(&outcome.rows);
    results.add("hostile", outcome);
}

fn once(options: &Options, run: usize, record: &mut Record) -> anyhow::Result<()> {
    let users = Users::new()?;
    let server = ServerProcess::with_users(&users.0)?;
    let ask = || {
        let uri = format!("hotrod://{USER}:{PASSWORD}@{}", server.at());
        tools::steady(&Steady { uri: &uri, pid: server.pid(), size: SIZE, reads: READS }, options)
    };
    Progress::result(&format!("a steady client, alone, run {run}"));
    let (both, connected_ms) = ask()?;
    record.alone.push(both);
    record.connected_ms.push(connected_ms);
    for victim in &mut record.victim {
        Progress::result(&format!("{}, run {run}", victim.by.name()));
        let handshake_load = Attack::start(&server, &victim.by.arguments())?;
        let asked = ask();
        // The attackers' output may explain an error.
        victim.handshake_load.push(handshake_load.end()?);
        let (both, connected_ms) = asked?;
        victim.client.push(both);
        victim.connected_ms.push(connected_ms);
    }
    drop(server);
    record.kilobytes_each.push(held(&users, options.handshakes())?);
    Ok(())
}

/// These connections have sent all but the end of a log-in.
fn held(users: &Users, count: usize) -> anyhow::Result<f64> {
    let server = ServerProcess::with_users(&users.0)?;
    let before = settled(&server);
    let count_said = format!("--count={count}");
    // Shorter than the server's timeout, and long enough to measure.
    let handshake_load = Attack::start(&server, &["connections", &count_said, "--unfinished", "--hold=8"])?;
    let kilobytes = (settled(&server) - before) * 1e3;
    let report = handshake_load.end()?;
    let opened =
        report["opened"].as_f64().filter(|opened| *opened > 0.0).context("no connection was opened")?;
    Ok(kilobytes / opened)
}

fn settled(server: &ServerProcess) -> f64 {
    let (until, mut memory, mut since) = (Instant::now() + SETTLING_MAX, server.memory_mb(), Instant::now());
    while since.elapsed() < SETTLED && Instant::now() < until {
        std::thread::sleep(SETTLED / 10);
        let now = server.memory_mb();
        if now > memory {
            (memory, since) = (now, Instant::now());
        }
    }
    memory
}

struct Users(PathBuf);

impl Users {
    fn new() -> anyhow::Result<Self> {
        let mut command = Command::new(tools::program("consort")?);
        command.args(["user", USER, "--role=admin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting consort user")?;
        writeln!(child.stdin.take().context("its input")?, "{PASSWORD}")?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "consort user ended with {}", output.status);
        let users = Self(std::env::temp_dir().join(format!("consort-bench-users-{}", std::process::id())));
        let file_name = || format!("{}", users.0.display());
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&users.0);
        file.with_context(file_name)?.write_all(&output.stdout).with_context(file_name)?;
        Ok(users)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        // It is a temporary file.
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Attack {
    child: KillOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Attack {
    fn start(server: &ServerProcess, arguments: &[impl AsRef<std::ffi::OsStr>]) -> anyhow::Result<Self> {
        let mut command = Command::new("chrt");
        command.args(["--idle", "0"]).arg(tools::program("handshake-load")?);
        command.arg(format!("--server={}", server.at())).args(arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = KillOnDrop(child.context("starting handshake-load with `chrt` (util-linux)")?);
        let input = child.0.stdin.take().context("their input")?;
        let mut output = BufReader::new(child.0.stdout.take().context("their output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line == "ready\n", "handshake-load has not started: {line:?}");
        Ok(Self { child, input, output })
    }

    fn end(self) -> anyhow::Result<Value> {
        let Self { mut child, input, mut output } = self;
        drop(input);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let status = child.0.wait()?;
        ensure!(status.success(), "handshake-load has ended with {status}");
        serde_json::from_str(&line).with_context(|| format!("handshake-load printed {line:?}"))
    }
}

fn rows(record: &Record, count: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for victim in &record.victim {
        let subject = victim.by.name();
        let of = |figure| (subject.clone(), figure);
        let figures = [
            ("p50 us", P50, None),
            ("p99 us", P99, Some(Target::AtMost(TARGET))),
            ("p99.9 us", P999, None),
            (SERVER_CPU, SERVER_CPU_US, None),
        ];
        for (figure, which, target) in figures {
            let (beside, alone) = (victim.client.runs(which), record.alone.runs(which));
            rows.push(Row::beside(Rival::Without, of(figure), &beside, Some(&alone), target));
        }
        let (connected, alone) = (Runs(victim.connected_ms.clone()), Runs(record.connected_ms.clone()));
        rows.push(Row::beside(Rival::Without, of("ms until logged in"), &connected, Some(&alone), None));
        for (figure, path) in victim.by.figures() {
            let report = victim.handshake_load.iter().filter_map(|report| report.pointer(path)?.as_f64());
            rows.push(Row::alone(of(figure), &Runs(report.collect()), None));
        }
    }
    let of = (format!("{count} strangers, unfinished log-ins"), "KB/connection");
    rows.push(Row::alone(of, &Runs(record.kilobytes_each.clone()), Some(Target::AtMost(KILOBYTES_MAX))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Both, Latency, Sample};

    fn pairs(p99: f64) -> Pairs {
        let latency = Some(Latency { p50: 1.0, p99, p999: 10.0 * p99 });
        let server = Sample { rate: 1.0, cpu_us: 1.0, latency, rss_mb: 1.0, errors: 0 };
        Pairs { warmup: Vec::new(), samples: vec![Both { server, client_cpu_us: 1.0 }] }
    }

    #[test]
    fn client_that_waits_more_than_twice_as_long_misses_the_target() {
        let victim = |by, p99| VictimClient {
            by,
            client: pairs(p99),
            handshake_load: vec![serde_json::json!({"scram_sec": 7.0})],
            connected_ms: vec![2.0],
        };
        let victim =
            vec![victim(HandshakeLoad::Connections(5), 20.0), victim(HandshakeLoad::BadPasswords, 20.1)];
        let (alone, connected_ms, kilobytes_each) = (pairs(10.0), vec![1.0], vec![60.0]);
        let rows = rows(&Record { alone, connected_ms, victim, kilobytes_each }, 5);
        let met: Vec<_> = rows.iter().filter_map(|row| Some((&row.subject[..], row.is_met()?))).collect();
        let wanted = [
            ("5 strangers at once", true),
            ("1000 wrong passwords a second", false),
            ("5 strangers, unfinished log-ins", true),
        ];
        assert_eq!(met, wanted);
        let row = rows.iter().find(|row| row.figure == "refused/s, SCRAM" && row.consort == Some(7.0));
        assert_eq!(row.map(|row| &row.subject[..]), Some("1000 wrong passwords a second"));
    }
}
