//! Many idle connections: the server's memory for each, and the delays of an active one.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, ensure};
use serde::Serialize;

use super::server_process::ServerProcess;
use super::{P50, P99, Pairs, SERVER_CPU_US, own_client};
use crate::options::{Options, Part};
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::Runs;
use crate::targets::{Rival, Row, SERVER_CPU, Target};

/// Hot Rod 3.0 without a cache: magic, id, version, operation, no name, no flags, basic intelligence, no
/// topology, no media types.
pub(crate) const PING: [u8; 10] = [0xA0, 1, 30, 0x17, 0, 0, 1, 0, 0, 0];

/// Magic, id, operation, status.
pub(crate) const PONG: [u8; 4] = [0xA1, 1, 0x18, 0];

const FILES_BESIDE: usize = 100;

/// The difference between two runs of the same.
const TARGET: f64 = 1.1;

#[derive(Default, Serialize)]
struct Record {
    connections: usize,
    kilobytes_each: Vec<f64>,
    alone: Pairs,
    beside: Pairs,
}

pub(crate) fn check(options: &Options) -> anyhow::Result<()> {
    let limits = std::fs::read_to_string("/proc/self/limits").context("/proc/self/limits")?;
    let idle = options.has(Part::Idle).then(|| ("--idle", options.idle()));
    let handshakes = options.has(Part::Hostile).then(|| ("--handshakes", options.handshakes()));
    let open = open_files(&limits).context("no limit of open files in /proc/self/limits")?;
    for (option, count) in idle.into_iter().chain(handshakes) {
        let wanted = count + FILES_BESIDE;
        ensure!(
            open >= wanted,
            "{open} open files are not enough for {option} {count}: `ulimit -n {wanted}`"
        );
    }
    Ok(())
}

fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

pub(crate) fn idle(options: &Options, results: &mut Results<'_>) {
    let mut record = Record { connections: options.idle(), ..Record::default() };
    let mut outcome = Outcome::default();
    for run in 1..=options.runs() {
        if let Err(error) = once(options, run, &mut record) {
            outcome.failures.push(error);
            break;
        }
        results.keep("idle", &record);
    }
    outcome.errors = record.alone.errors() + record.beside.errors();
    outcome.rows = rows(&record);
    report::print_rows(&outcome.rows);
    results.add("idle", outcome);
}

fn once(options: &Options, run: usize, record: &mut Record) -> anyhow::Result<()> {
    Progress::result(&format!("{} idle connections, run {run}", record.connections));
    let server = ServerProcess::consort()?;
    let before = server.memory_mb();
    let at = server.at();
    let idle = (0..record.connections).map(|_| greeted(&at)).collect::<anyhow::Result<Vec<_>>>()?;
    record.kilobytes_each.push((server.memory_mb() - before) * 1e3 / idle.len().max(1) as f64);
    record.beside.push(own_client(&server, 1, options)?);
    for connection in &idle {
        // The server has sent nothing since, and has not closed the connection.
        connection.set_nonblocking(true)?;
        let peeked = connection.peek(&mut [0]);
        ensure!(peeked.is_err(), "the server has ended a connection that had nothing to say");
    }
    drop(idle);
    record.alone.push(own_client(&server, 1, options)?);
    Ok(())
}

fn greeted(at: &str) -> anyhow::Result<TcpStream> {
    let mut connection = TcpStream::connect(at).with_context(|| at.to_owned())?;
    connection.write_all(&PING)?;
    // The rest of the response, a few bytes, has arrived with it.
    let mut answer = [0; 256];
    let count = connection.read(&mut answer)?;
    ensure!(answer[..count].starts_with(&PONG), "not the response to a PING: {:?}", &answer[..count]);
    Ok(connection)
}

fn rows(record: &Record) -> Vec<Row> {
    let subject = format!("{} idle connections", record.connections);
    let of = |figure| (subject.clone(), figure);
    let mut rows = vec![Row::alone(of("KB/connection"), &Runs(record.kilobytes_each.clone()), None)];
    let figures = [
        ("p50 us", P50, Some(Target::AtMost(TARGET))),
        ("p99 us", P99, None),
        (SERVER_CPU, SERVER_CPU_US, None),
    ];
    for (figure, which, target) in figures {
        let (beside, alone) = (record.beside.runs(which), record.alone.runs(which));
        rows.push(Row::beside(Rival::Without, of(figure), &beside, Some(&alone), target));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::open_files;

    #[test]
    fn the_soft_limit_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(limits), Some(1_024));
        assert_eq!(open_files("Max open files unlimited unlimited files"), Some(usize::MAX));
        assert_eq!(open_files("Max locked memory 1 1 bytes"), None);
    }
}
