//! The load that clients can cause on two servers that share 512 MiB: every operation of Hot Rod and requests
//! in HTTP in four situations, and unfinished messages of members.
//!
//! A cell has the bytes sent for each byte of requests, the peak memory, and the slowest request of a healthy
//! client, which a busy server thread delays.

mod attack;
mod healthy;
mod operations;

use std::time::{Duration, Instant};

use anyhow::ensure;
use consort_client::Client;
use consort_hotrod::Opcode;
use consort_testbed::ControlGroup;
use serde::Serialize;

use self::attack::{Attack, Situation, Traffic};
use self::healthy::{Delays, Healthy};
use crate::hotrod::ServerProcess;
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};

const MEMORY: u64 = 512 * MIB;
const MIB: u64 = 1024 * 1024;

const PORTS: [u16; 2] = [11_222, 11_223];
const MEMBER_PORTS: [u16; 2] = [7_800, 7_801];

/// Each has one owner; about half of them are the other server's.
const HUGE_VALUES: usize = 6;
const HUGE_BYTES: usize = 8 * 1024 * 1024;

/// A healthy client's p99 beside its p99 without an attack.
const P99_FACTOR_MAX: f64 = 2.0;

/// Servers release an attack's memory within this time.
const RETURN_TIME_MAX: Duration = Duration::from_secs(15);
/// The rest above the level before the attack.
const RETURNED: u64 = 64 * MIB;

#[derive(Serialize)]
struct Cell {
    target: String,
    situation: &'static str,
    bytes_in: u64,
    bytes_out: u64,
    peak_mib: f64,
    /// Above the level before, after `RETURN_TIME_MAX` at most.
    kept_mib: f64,
    healthy_p99_ms: f64,
    healthy_max_ms: f64,
}

#[derive(Serialize)]
struct Record {
    alone_p99_ms: f64,
    alone_max_ms: f64,
    cells: Vec<Cell>,
}

/// Both servers have the small values, and one has the huge ones.
struct Servers {
    group: ControlGroup,
    _servers: Vec<ServerProcess>,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Servers {
    fn start() -> anyhow::Result<Self> {
        let group = ControlGroup::new("overload", MEMORY)?;
        let program = crate::tools::program("consort")?;
        let hosts = MEMBER_PORTS.map(|port| format!("127.0.0.1[{port}]")).join(",");
        let hosts = format!("-Djgroups.tcpping.initial_hosts={hosts}");
        let mut servers = Vec::new();
        for (port, member) in PORTS.into_iter().zip(MEMBER_PORTS) {
            let (own, member) = (format!("--port={port}"), format!("-Djgroups.bind_port={member}"));
            let arguments = ["server", "--cluster=overload", "--bind=127.0.0.1", &own, &member, &hosts];
            let command = group.command(&program, &arguments);
            servers.push(ServerProcess::start(command, "consort server", "Hot Rod on", port)?);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(Client::connect(&format!("hotrod://127.0.0.1:{}", PORTS[1])))?;
        let made = Self { group, _servers: servers, client, runtime };
        made.runtime.block_on(async {
            let administration = made.client.administration();
            let small = r#"{"replicated-cache": {"mode": "SYNC"}}"#;
            administration.create("small", small).await?;
            administration.create("huge", r#"{"distributed-cache": {"mode": "SYNC", "owners": 1}}"#).await
        })?;
        Ok(made)
    }

    fn restore(&self) -> anyhow::Result<()> {
        let (small, huge) = (self.client.raw("small"), self.client.raw("huge"));
        self.runtime.block_on(async {
            small.put(attack::SMALL_KEY, &[7; 100][..]).await?;
            for nth in 0..HUGE_VALUES {
                let key = attack::huge_key(nth);
                if huge.get(&key[..]).await?.is_none_or(|value| value.len() != HUGE_BYTES) {
                    huge.put(&key[..], &vec![nth as u8; HUGE_BYTES][..]).await?;
                }
            }
            Ok(())
        })
    }
}

pub(crate) fn overload(options: &Options, results: &mut Results<'_>) {
    let outcome = measure(options, results).unwrap_or_else(Outcome::failed);
    results.add("overload", outcome);
}

fn measure(options: &Options, results: &mut Results<'_>) -> anyhow::Result<Outcome> {
    let attack_time = Duration::from_secs_f64(if options.quick { 0.3 } else { 1.0 });
    let attacks = attacks(options.quick);
    let mut progress = Progress::new(attack_time * (2 * attacks.len()) as u32);
    let servers = Servers::start()?;
    servers.restore()?;
    let healthy = Healthy::start(PORTS[0])?;
    let alone = healthy.during(|| std::thread::sleep(attack_time * 3));
    let mut record = Record { alone_p99_ms: alone.p99_ms, alone_max_ms: alone.max_ms, cells: Vec::new() };
    for attack in &attacks {
        progress.step(&format!("{}, {}", attack.name(), attack.situation.name()));
        servers.restore()?;
        record.cells.push(cell(&servers, &healthy, attack, attack_time)?);
        progress.finish(attack_time * 2);
        results.keep("overload", &record);
    }
    println!("{}", table(&record));
    let is_slow = |cell: &&Cell| cell.healthy_p99_ms > P99_FACTOR_MAX * record.alone_p99_ms;
    let slow = record.cells.iter().filter(is_slow).count();
    let kept = record.cells.iter().filter(|cell| cell.kept_mib * MIB as f64 > RETURNED as f64).count();
    println!(
        "{} cells: the healthy client's p99 was more than {P99_FACTOR_MAX} times that of before in {slow}, and more than {} MiB \
         were not given back in {RETURN_TIME_MAX:?} in {kept}",
        record.cells.len(),
        RETURNED / MIB
    );
    let killed = servers.group.killed()?;
    ensure!(killed == 0, "{killed} servers were killed for lack of memory");
    Ok(Outcome::default())
}

fn attacks(is_quick: bool) -> Vec<Attack> {
    let operations = Opcode::ALL.iter().copied().map(Some).chain([None]);
    let step = if is_quick { 16 } else { 1 };
    let mut attacks: Vec<Attack> = operations
        .step_by(step)
        .flat_map(|opcode| Situation::ALL.map(|situation| Attack { opcode, situation }))
        .collect();
    attacks.push(Attack { opcode: None, situation: Situation::UnfinishedOfMembers });
    attacks
}

fn cell(servers: &Servers, healthy: &Healthy, attack: &Attack, time: Duration) -> anyhow::Result<Cell> {
    let before = servers.group.used()?;
    let mut peak = before;
    let mut traffic = Traffic::default();
    let delays: Delays = healthy.during(|| {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attack::lower_priority();
                traffic = attack.run(time);
                let _ = done.send(());
            });
            while is_done.recv_timeout(Duration::from_millis(2)).is_err() {
                peak = peak.max(servers.group.used().unwrap_or_default());
            }
        });
    });
    let until = Instant::now() + RETURN_TIME_MAX;
    let mut kept = servers.group.used()?.saturating_sub(before);
    while kept > RETURNED && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        kept = servers.group.used()?.saturating_sub(before);
    }
    let killed = servers.group.killed()?;
    ensure!(
        killed == 0,
        "{}, {}: a server was killed for lack of memory",
        attack.name(),
        attack.situation.name()
    );
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    Ok(Cell {
        target: attack.name(),
        situation: attack.situation.name(),
        bytes_in: traffic.sent,
        bytes_out: traffic.received,
        peak_mib: mib(peak),
        kept_mib: mib(kept),
        healthy_p99_ms: delays.p99_ms,
        healthy_max_ms: delays.max_ms,
    })
}

fn table(record: &Record) -> String {
    let head = ["target", "situation", "out/in", "peak, MiB", "kept, MiB", "p99, ms", "longest, ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let number = |number: f64| report::number(Some(number));
    rows.push(vec![
        "nothing".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
        number(record.alone_p99_ms),
        number(record.alone_max_ms),
    ]);
    for cell in &record.cells {
        rows.push(vec![
            cell.target.clone(),
            cell.situation.to_owned(),
            number(cell.bytes_out as f64 / cell.bytes_in.max(1) as f64),
            number(cell.peak_mib),
            number(cell.kept_mib),
            number(cell.healthy_p99_ms),
            number(cell.healthy_max_ms),
        ]);
    }
    report::markdown(&rows, 2)
}
