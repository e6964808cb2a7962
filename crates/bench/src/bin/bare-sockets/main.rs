//! The cost of a multicast test's bytes over bare sockets: members, sizes and fan-out as `consort mperf`, and
//! no protocol.
//!
//! Every member sends to every other over TCP, or to a multicast group; its own copy counts. Over UDP a window
//! of acknowledged bytes keeps receive buffers from overflowing.

mod memory;
mod meter;
mod tcp;
mod udp;

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use consort_testbed::KillOnDrop;
use serde::{Deserialize, Serialize};

/// Moves the bytes of a multicast test over bare sockets, and prints their cost as one line of JSON.
#[derive(Parser)]
struct Arguments {
    /// Member processes on this host.
    #[arg(long, default_value_t = 4)]
    members: usize,
    /// Bytes per message: reads and writes hold as many as fit.
    #[arg(long, default_value_t = 1_000)]
    size: usize,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// IP multicast instead of a TCP connection between any two.
    #[arg(long)]
    udp: bool,
    /// Bytes of memory over which reads rotate, as they do at a receiver that keeps messages for a while. Without it every
    /// read goes to the same place, which stays in the CPU's cache.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    memory: usize,
    /// TCP port of the first member, or the group's.
    #[arg(long, default_value_t = 16_800)]
    port: u16,
    /// Runs as one of the members: this one.
    #[arg(long, hide = true)]
    member: Option<usize>,
}

#[derive(Clone, Copy)]
struct Test {
    members: usize,
    own: usize,
    size: usize,
    port: u16,
    memory: usize,
    warmup: Duration,
    time: Duration,
}

#[derive(Serialize, Deserialize)]
struct Moved {
    /// Includes the member's own messages.
    bytes: u64,
    seconds: f64,
    cpu_s: f64,
    rss_mb: f64,
    lost: u64,
}

/// As in `consort mperf --json`.
#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: usize,
    size: usize,
    msgs_sec_node: f64,
    mb_sec_node: f64,
    cpu_s_per_mmsg: f64,
    rss_mb: f64,
    lost: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.members < 2 || !(1..=udp::DATAGRAM_MAX).contains(&arguments.size) {
        bail!("two members at least, and messages of 1 to {} bytes", udp::DATAGRAM_MAX);
    }
    let Some(own) = arguments.member else { return measure(&arguments) };
    let test = Test {
        members: arguments.members,
        own,
        size: arguments.size,
        port: arguments.port,
        memory: arguments.memory,
        warmup: Duration::from_secs_f64(arguments.warmup),
        time: Duration::from_secs_f64(arguments.time),
    };
    let moved = if arguments.udp { udp::run(test)? } else { tcp::run(test)? };
    println!("{}", serde_json::to_string(&moved)?);
    Ok(())
}

fn wait_for_all() -> anyhow::Result<()> {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if line.is_empty() { bail!("the run is over") } else { Ok(()) }
}

struct Member {
    _child: KillOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Member {
    fn start(nth: usize) -> anyhow::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .arg(format!("--member={nth}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a member")?;
        let mut child = KillOnDrop(child);
        let (input, output) = (child.0.stdin.take(), child.0.stdout.take());
        let (input, output) = input.zip(output).context("a member's pipes")?;
        Ok(Self { _child: child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() { bail!("a member ended early") } else { Ok(line) }
    }
}

fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let mut members = (0..arguments.members).map(Member::start).collect::<anyhow::Result<Vec<_>>>()?;
    for member in &mut members {
        member.line()?;
    }
    for member in &mut members {
        writeln!(member.input, "go")?;
    }
    let moved = members
        .iter_mut()
        .map(|member| Ok(serde_json::from_str(&member.line()?)?))
        .collect::<anyhow::Result<Vec<Moved>>>()?;
    let size = arguments.size as f64;
    let bytes_sec: f64 = moved.iter().map(|moved| moved.bytes as f64 / moved.seconds).sum();
    let messages: f64 = moved.iter().map(|moved| moved.bytes as f64 / size).sum();
    let cpu: f64 = moved.iter().map(|moved| moved.cpu_s).sum();
    let bytes_sec_node = bytes_sec / arguments.members as f64;
    let summary = Summary {
        test: if arguments.udp { "bare udp" } else { "bare tcp" },
        members: arguments.members,
        size: arguments.size,
        msgs_sec_node: bytes_sec_node / size,
        mb_sec_node: bytes_sec_node / 1e6,
        cpu_s_per_mmsg: cpu * 1e6 / messages.max(1.0),
        rss_mb: moved.iter().map(|moved| moved.rss_mb).fold(0.0, f64::max),
        lost: moved.iter().map(|moved| moved.lost).sum(),
    };
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
