//! The cost of requests and responses over one bare socket: one request under way, blocking calls, one read and
//! one write per message. A read is a short request with a long response, a write the other way round.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use consort_procstat::process;
use consort_testbed::KillOnDrop;
use hdrhistogram::Histogram;
use serde_json::json;

/// Exchanges requests and responses over a bare socket, and prints their cost as one line of JSON.
#[derive(Parser)]
struct Arguments {
    /// Bytes of the longer one of request and response.
    #[arg(long, default_value_t = 1_000)]
    size: usize,
    /// The part of the requests that are short.
    #[arg(long, default_value_t = 0.8)]
    reads: f64,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Runs as the server.
    #[arg(long, hide = true)]
    serve: bool,
}

/// The lengths of a request and its response, 4 bytes each.
const HEAD: usize = 8;

/// The shorter one of request and response: about Hot Rod's with a key of 12 bytes.
const SHORT: usize = 32;

const SIZE_MAX: usize = 60_000;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!((1..=SIZE_MAX).contains(&arguments.size), "messages of 1 to {SIZE_MAX} bytes");
    if arguments.serve { serve() } else { measure(&arguments) }
}

fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut client, _) = listener.accept()?;
    client.set_nodelay(true)?;
    let (mut request, answer) = (vec![0; HEAD + SIZE_MAX], vec![0; SIZE_MAX]);
    loop {
        let mut filled = 0;
        let wanted = loop {
            match client.read(&mut request[filled..])? {
                0 => return Ok(()),
                count => filled += count,
            }
            if filled >= HEAD && filled >= HEAD + number(&request) {
                break number(&request[4..]);
            }
        };
        client.write_all(&answer[..wanted.min(SIZE_MAX)])?;
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize).min(SIZE_MAX)
}

fn request(length: usize, answer: usize) -> Vec<u8> {
    let mut request = [length as u32, answer as u32].map(u32::to_be_bytes).concat();
    request.resize(HEAD + length, 1);
    request
}

fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    let child = command.arg("--serve").stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut server = KillOnDrop(child.context("starting the server")?);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().context("its output")?).read_line(&mut line)?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, line.trim().parse::<u16>()?))?;
    stream.set_nodelay(true)?;
    let kinds = [(request(SHORT, arguments.size), arguments.size), (request(arguments.size, SHORT), SHORT)];
    let mut answer = vec![0; SIZE_MAX];
    let mut latencies = Histogram::<u64>::new_with_bounds(100, 60_000_000_000, 3)?;
    // Reads and writes in their proportion, in turn.
    let mut due = 0.0;
    let mut exchange = |latencies: &mut Histogram<u64>| -> io::Result<Instant> {
        due += 1.0 - arguments.reads;
        let is_write = due >= 1.0;
        due -= f64::from(u8::from(is_write));
        let (request, length) = &kinds[usize::from(is_write)];
        let begin = Instant::now();
        stream.write_all(request)?;
        stream.read_exact(&mut answer[..*length])?;
        let end = Instant::now();
        latencies.saturating_record((end - begin).as_nanos() as u64);
        Ok(end)
    };
    let until = Instant::now() + Duration::from_secs_f64(arguments.warmup);
    while exchange(&mut latencies)? < until {}
    latencies.reset();
    let (begin, server_cpu, cpu) = (Instant::now(), process::cpu_of(server.0.id()), process::cpu());
    let until = begin + Duration::from_secs_f64(arguments.time);
    while exchange(&mut latencies)? < until {}
    let seconds = begin.elapsed().as_secs_f64();
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / latencies.len() as f64;
    let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    let summary = json!({
        "test": "ping-pong",
        "reqs_sec_cluster": latencies.len() as f64 / seconds,
        "server_cpu_s_per_mreq": each(process::cpu_of(server.0.id()).saturating_sub(server_cpu)),
        "cpu_s_per_mreq": each(process::cpu().saturating_sub(cpu)),
        "latency_us": {"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999)},
        "server_rss_mb": process::peak_memory_mb_of(server.0.id()),
        "errors": 0,
        "missing": 0,
    });
    println!("{summary}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_length_and_that_of_the_response() {
        let request = request(32, 1_000);
        assert_eq!((request.len(), number(&request), number(&request[4..])), (HEAD + 32, 32, 1_000));
    }
}
