//! Measures Consort beside JGroups, bare sockets and other data grids in one run (`cargo xtask bench`).
//!
//! Runs alternate, so that other load of the machine affects both. CPU is user and system time of all member
//! processes in the measurement, per operation, load included.

#![forbid(unsafe_code)]

mod bundlers;
mod cleanup;
mod failover;
mod gigabit;
mod grid;
mod hotrod;
mod interleaved;
mod java;
mod micro;
mod options;
mod overload;
mod plan;
mod previous;
mod progress;
mod record;
mod report;
mod results;
mod sample;
mod series;
mod session;
mod targets;
mod tools;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use consort_testbed::{Jar, Network, own_network};

use crate::options::{Options, Part};
use crate::report::Machine;
use crate::results::{Outcome, Results};
use crate::series::Growing;
use crate::session::Session;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const JAR_VARIABLE: &str = "CONSORT_BENCH_JAR";
const NETWORK_VARIABLE: &str = "CONSORT_BENCH_IN_NETWORK";

fn main() -> ExitCode {
    let options = Options::parse();
    let result =
        if std::env::var_os(NETWORK_VARIABLE).is_some() { measure(&options) } else { enter(&options) };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn enter(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = own_network(Network::Loopback);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(NETWORK_VARIABLE, "1");
    if options.needs_java() || options.needs_java_grids() || options.needs_java_servers() {
        let advice = "Java cannot be measured (--without-java leaves it out)";
        let jdk = java::find().context(advice)?;
        if options.needs_virtual_threads() && jdk.version < java::VIRTUAL_THREADS {
            bail!(
                "{} is Java {}, and virtual threads need {}: set JAVA_HOME, or --java-threads platform",
                jdk.java.display(),
                jdk.version,
                java::VIRTUAL_THREADS
            );
        }
        if options.needs_java() {
            command.env(JAR_VARIABLE, Jar::prepare().context(advice)?.directory());
        }
        if options.needs_java_grids() {
            command.env(JAR_VARIABLE, Jar::prepare_grids().context(advice)?.directory());
        }
        if options.needs_java_servers() {
            hotrod::prepare().context(advice)?;
        }
    }
    let error = command.exec();
    Err(error).context("`unshare` (util-linux) gives this program a network of its own, and does not start")
}

/// Reports first which parts this machine cannot run. The parts go on after a failure.
fn measure(options: &Options) -> anyhow::Result<ExitCode> {
    cleanup::with_children()?;
    let jar = std::env::var_os(JAR_VARIABLE).map(Jar::in_directory);
    let previous = options.previous.as_deref().map(previous::read).transpose()?;
    let session = options.has_session().then(|| Session::new(options, jar.clone())).transpose()?;
    if options.has(Part::Gigabit) {
        gigabit::check(options)?;
    }
    if options.has(Part::Idle) || options.has(Part::Hostile) {
        hotrod::check(options)?;
    }
    let machine = Machine::look();
    println!("{}", machine.text());
    let mut results = Results::new(options, &machine)?;
    if let Some(session) = session {
        let outcome = session.run(|record| results.keep("record", record));
        results.add("calls and multicasts", outcome);
    }
    if options.has(Part::Micro) {
        results.add("micro", micro::measure(options, jar.as_ref()));
    }
    if options.has(Part::Gigabit) {
        results.add("gigabit", gigabit::measure(options).unwrap_or_else(Outcome::failed));
    }
    if options.has(Part::Bundlers) {
        bundlers::measure(options, &mut results);
    }
    for (part, growing) in [(Part::Senders, Growing::Senders), (Part::Members, Growing::Members)] {
        if options.has(part) {
            series::measure(growing, options, &mut results);
        }
    }
    if options.has(Part::Grid) {
        grid::measure(options, jar.as_ref(), &mut results);
    }
    if options.has(Part::Iterate) {
        grid::iterate(options, jar.as_ref(), &mut results);
    }
    if options.has(Part::Rebalance) {
        grid::rebalance(options, &mut results);
    }
    if options.has(Part::Server) {
        hotrod::server(options, &mut results);
    }
    if options.has(Part::Idle) {
        hotrod::idle(options, &mut results);
    }
    if options.has(Part::Streams) {
        hotrod::streams(options, &mut results);
    }
    if options.has(Part::Hostile) {
        hotrod::hostile(options, &mut results);
    }
    if options.has(Part::Pool) {
        hotrod::pool(options, &mut results);
    }
    if options.has(Part::Failover) {
        failover::failover(options, jar.as_ref(), &mut results);
    }
    if options.has(Part::Overload) {
        overload::overload(options, &mut results);
    }
    Ok(results.verdict(previous.as_ref()))
}
