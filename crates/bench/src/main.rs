//! Measures Consort beside JGroups, and beside bare sockets, in one run (`cargo xtask bench`).
//!
//! Runs alternate, so that what else the machine does meets both. Everything happens in a network namespace of its
//! own. CPU is user and system time of all member processes while they measured, per operation, load included.

#![forbid(unsafe_code)]

mod bundlers;
mod gigabit;
mod java;
mod micro;
mod options;
mod plan;
mod previous;
mod progress;
mod report;
mod sample;
mod series;
mod session;
mod targets;
mod tools;

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use consort_jgroups::{Jar, Network, own_network};

use crate::bundlers::Entry;
use crate::options::{Options, Part};
use crate::report::Machine;
use crate::series::{Growing, Series};
use crate::session::Session;

/// As in the `consort` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Set in the network namespace: where JGroups' jar has been prepared, if it is measured.
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

/// Fetches what has to be fetched, then becomes this program in a network of its own.
fn enter(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = own_network(Network::Loopback);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(NETWORK_VARIABLE, "1");
    if options.needs_java() {
        let advice = "JGroups cannot be measured (--without-java leaves it out)";
        let jdk = java::find().context(advice)?;
        if options.needs_virtual_threads() && jdk.version < java::VIRTUAL_THREADS {
            bail!(
                "{} is Java {}, and virtual threads need {}: set JAVA_HOME, or --java-threads platform",
                jdk.java.display(),
                jdk.version,
                java::VIRTUAL_THREADS
            );
        }
        let jar = Jar::prepare().context(advice)?;
        command.env(JAR_VARIABLE, jar.directory());
    }
    let error = command.exec();
    Err(error).context("`unshare` (util-linux) gives this program a network of its own, and does not start")
}

fn measure(options: &Options) -> anyhow::Result<ExitCode> {
    let jar = std::env::var_os(JAR_VARIABLE).map(Jar::in_directory);
    let previous = options.previous.as_deref().map(previous::read).transpose()?;
    let machine = Machine::look();
    println!("{}", machine.text());
    let mut content = serde_json::Map::from_iter([("machine".to_owned(), serde_json::to_value(&machine)?)]);
    let (mut rows, mut is_good) = (Vec::new(), true);
    if options.has_session() {
        let record = Session::new(options, jar.clone())?.run()?;
        report::print(&record);
        rows.extend(targets::rows(&record.points));
        is_good &= record.points.iter().all(|point| point.errors() == 0);
        content.insert("record".to_owned(), serde_json::to_value(&record)?);
    }
    if options.has(Part::Micro) {
        rows.extend(micro::measure(options, jar.as_ref())?);
    }
    if options.has(Part::Gigabit) {
        rows.extend(gigabit::measure(options)?);
    }
    if !is_good {
        eprintln!("bench: calls failed, or messages were lost");
    }
    if !rows.is_empty() {
        report::print_rows(&rows);
    }
    let mut as_promised = true;
    if options.has(Part::Bundlers) {
        let entries = bundlers::measure(options)?;
        as_promised &= bundlers::print(&entries);
        rows.extend(entries.iter().map(Entry::row));
        content.insert("bundlers".to_owned(), serde_json::to_value(&entries)?);
    }
    for (part, growing) in [(Part::Senders, Growing::Senders), (Part::Members, Growing::Members)] {
        if options.has(part) {
            let series = Series::measure(growing, options)?;
            as_promised &= series.print();
            rows.extend(series.rows());
            content.insert(growing.name().to_owned(), serde_json::to_value(&series)?);
        }
    }
    content.insert("rows".to_owned(), serde_json::to_value(&rows)?);
    if let Some(file) = &options.json {
        report::write(file, &content.into())?;
    }
    if let Some(previous) = previous {
        is_good &= previous.compare(&rows, options.tolerance);
    }
    if options.check {
        is_good &= as_promised && rows.iter().all(|row| row.is_met() != Some(false));
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
