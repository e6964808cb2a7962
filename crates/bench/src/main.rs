//! Measures Consort beside JGroups, and beside bare sockets, in one run (`cargo xtask bench`).
//!
//! Runs alternate, so that what else the machine does meets both. Everything happens in a network namespace of its
//! own. CPU is user and system time of all member processes while they measured, per operation, load included.

#![forbid(unsafe_code)]

mod java;
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

use crate::options::{Options, Part};
use crate::report::Machine;
use crate::session::Session;

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
    if options.only == Some(Part::Members) {
        let machine = Machine::look();
        println!("{}", machine.text());
        let steps = series::measure(options)?;
        let stays = series::print(&steps);
        if let Some(file) = &options.json {
            report::write(file, &serde_json::json!({ "machine": machine, "series": steps }))?;
        }
        return Ok(if stays || !options.check { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let jar = std::env::var_os(JAR_VARIABLE).map(Jar::in_directory);
    let previous = options.previous.as_deref().map(previous::read).transpose()?;
    let record = Session::new(options, jar)?.run()?;
    let rows = targets::rows(&record.points);
    report::print(&record, &rows);
    if let Some(file) = &options.json {
        report::write(file, &serde_json::json!({ "record": record, "rows": rows }))?;
    }
    let mut is_good = record.points.iter().all(|point| point.errors() == 0);
    if !is_good {
        eprintln!("bench: calls failed, or messages were lost");
    }
    if let Some(previous) = previous {
        is_good &= previous.compare(&rows, options.tolerance);
    }
    if options.check {
        is_good &= rows.iter().all(|row| row.is_met() != Some(false));
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
