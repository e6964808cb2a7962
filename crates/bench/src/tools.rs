//! Programs that measure themselves and print one line of JSON: `consort`, `bare-sockets` and `senders`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::sample::{Latency, Sample};

/// A program that was built with this one.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        bail!("{} is not built: `cargo xtask bench` builds it", path.display())
    }
}

/// Runs it and returns its line. It ends with a failure if operations failed, which its figures say, too.
fn run(name: &str, arguments: &[String]) -> anyhow::Result<Value> {
    run_by(Command::new(program(name)?), name, arguments)
}

fn run_by(mut command: Command, name: &str, arguments: &[String]) -> anyhow::Result<Value> {
    let output =
        command.args(arguments).stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).with_context(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        format!("`{name} {}` ended with {} and no figures:\n{why}", arguments.join(" "), output.status)
    })
}

/// A number that has to be there.
fn number(figures: &Value, path: &str) -> anyhow::Result<f64> {
    figures.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in {figures}"))
}

/// `consort uperf`.
pub(crate) fn consort_uperf(arguments: &[String]) -> anyhow::Result<Sample> {
    let figures = run("consort", &[&["uperf".to_owned(), "--json".to_owned()], arguments].concat())?;
    Ok(Sample {
        rate: number(&figures, "/reqs_sec_node")?,
        cpu_us: number(&figures, "/cpu_s_per_mreq")?,
        latency: Some(Latency {
            p50: number(&figures, "/latency_us/p50")?,
            p99: number(&figures, "/latency_us/p99")?,
            p999: number(&figures, "/latency_us/p99.9")?,
        }),
        rss_mb: number(&figures, "/rss_mb")?,
        errors: number(&figures, "/errors")? as u64,
    })
}

/// `consort mperf`.
pub(crate) fn consort_mperf(arguments: &[String]) -> anyhow::Result<Sample> {
    consort_mperf_by(Command::new(program("consort")?), arguments)
}

/// The same, by a command that starts `consort` somewhere else.
pub(crate) fn consort_mperf_by(command: Command, arguments: &[String]) -> anyhow::Result<Sample> {
    let arguments = [&["mperf".to_owned(), "--json".to_owned()], arguments].concat();
    let figures = run_by(command, "consort", &arguments)?;
    multicast(&figures, &["/lost", "/duplicated", "/reordered"])
}

/// The bench's own program. What it loses it does not send again, and neither does it matter.
pub(crate) fn bare_sockets(arguments: &[String]) -> anyhow::Result<Sample> {
    multicast(&run("bare-sockets", arguments)?, &[])
}

/// The bench's own program: threads that send to one member.
pub(crate) fn senders(arguments: &[String]) -> anyhow::Result<Sample> {
    multicast(&run("senders", arguments)?, &["/lost"])
}

fn multicast(figures: &Value, errors: &[&str]) -> anyhow::Result<Sample> {
    let errors = errors.iter().map(|path| Ok(number(figures, path)? as u64)).sum::<anyhow::Result<u64>>()?;
    Ok(Sample {
        rate: number(figures, "/msgs_sec_node")?,
        cpu_us: number(figures, "/cpu_s_per_mmsg")?,
        latency: None,
        rss_mb: number(figures, "/rss_mb")?,
        errors,
    })
}
