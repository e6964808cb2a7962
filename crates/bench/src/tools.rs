//! Programs that measure themselves and print one line of JSON.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::options::Options;
use crate::plan::Load;
use crate::sample::{Both, Latency, Sample};

pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        bail!("{} is not built: `cargo xtask bench` builds it", path.display())
    }
}

struct Report {
    figures: Value,
    is_success: bool,
}

impl Report {
    fn number(&self, path: &str) -> anyhow::Result<f64> {
        let number = self.figures.pointer(path).and_then(Value::as_f64);
        number.with_context(|| format!("no {path} in {}", self.figures))
    }

    /// A program that fails and reports none counts as one.
    fn errors(&self, paths: &[&str]) -> anyhow::Result<u64> {
        let counts = paths.iter().map(|path| Ok(self.number(path)? as u64));
        let errors = counts.sum::<anyhow::Result<u64>>()?;
        Ok(errors.max(u64::from(!self.is_success)))
    }

    fn calls(&self) -> anyhow::Result<Sample> {
        Ok(Sample {
            rate: self.number("/reqs_sec_node")?,
            cpu_us: self.number("/cpu_s_per_mreq")?,
            latency: Some(self.latency()?),
            rss_mb: self.number("/rss_mb")?,
            errors: self.errors(&["/errors"])?,
        })
    }

    fn latency(&self) -> anyhow::Result<Latency> {
        Ok(Latency {
            p50: self.number("/latency_us/p50")?,
            p99: self.number("/latency_us/p99")?,
            p999: self.number("/latency_us/p99.9")?,
        })
    }

    fn requests(&self) -> anyhow::Result<Both> {
        Ok(Both {
            server: Sample {
                rate: self.number("/reqs_sec_cluster")?,
                cpu_us: self.number("/server_cpu_s_per_mreq")?,
                latency: Some(self.latency()?),
                rss_mb: self.number("/server_rss_mb")?,
                errors: self.errors(&["/errors", "/missing"])?,
            },
            client_cpu_us: self.number("/cpu_s_per_mreq")?,
        })
    }

    fn multicasts(&self, errors: &[&str]) -> anyhow::Result<Sample> {
        Ok(Sample {
            rate: self.number("/msgs_sec_node")?,
            cpu_us: self.number("/cpu_s_per_mmsg")?,
            latency: None,
            rss_mb: self.number("/rss_mb")?,
            errors: self.errors(errors)?,
        })
    }
}

fn run(name: &str, arguments: &[String]) -> anyhow::Result<Report> {
    run_by(Command::new(program(name)?), name, arguments)
}

fn run_by(mut command: Command, name: &str, arguments: &[String]) -> anyhow::Result<Report> {
    let output =
        command.args(arguments).stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    let report = String::from_utf8_lossy(&output.stdout);
    let figures = report.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let figures = figures.with_context(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        format!("`{name} {}` ended with {} and no figures:\n{why}", arguments.join(" "), output.status)
    })?;
    Ok(Report { figures, is_success: output.status.success() })
}

pub(crate) fn consort(
    load: &Load,
    members: usize,
    options: &Options,
    more: &[String],
) -> anyhow::Result<Sample> {
    consort_by(Command::new(program("consort")?), load, members, options, more)
}

pub(crate) fn consort_by(
    command: Command,
    load: &Load,
    members: usize,
    options: &Options,
    more: &[String],
) -> anyhow::Result<Sample> {
    let arguments = [&consort_arguments(load, members, options), more].concat();
    let report = run_by(command, "consort", &arguments)?;
    match load {
        Load::Uperf { .. } => report.calls(),
        Load::Mperf { .. } => report.multicasts(&["/lost", "/duplicated", "/reordered"]),
    }
}

/// Gives all arguments that change the load, because the command's defaults differ from the bench's.
fn consort_arguments(load: &Load, members: usize, options: &Options) -> Vec<String> {
    let mut arguments = match load {
        Load::Uperf { callers, .. } => {
            vec!["uperf".to_owned(), format!("--threads={callers}"), format!("--oob={}", options.oob)]
        }
        Load::Mperf { config, size } => vec![
            "mperf".to_owned(),
            format!("--threads={}", options.senders),
            format!("--config={config}"),
            format!("--size={size}"),
        ],
    };
    arguments.extend(["--json".to_owned(), format!("--members={members}")]);
    arguments.extend(times(options));
    arguments
}

fn times(options: &Options) -> [String; 2] {
    [format!("--time={}", options.time().as_secs_f64()), format!("--warmup={}", options.lead().as_secs_f64())]
}

/// Lost datagrams are not sent again, and do not count as errors.
pub(crate) fn bare_sockets(load: &Load, options: &Options) -> anyhow::Result<Sample> {
    let mut arguments = vec![format!("--members={}", options.members)];
    arguments.extend(times(options));
    if let Load::Mperf { config, size } = load {
        arguments.push(format!("--size={size}"));
        arguments.extend(config.starts_with("udp").then(|| "--udp".to_owned()));
    }
    run("bare-sockets", &arguments)?.multicasts(&[])
}

/// `reads` is the part of the operations that read.
pub(crate) fn perf(members: usize, reads: f64, options: &Options) -> anyhow::Result<Sample> {
    let arguments = [
        &[
            "perf".to_owned(),
            format!("--members={members}"),
            format!("--reads={reads}"),
            format!("--invokers={}", options.invokers),
            format!("--keys={}", options.keys),
            "--json".to_owned(),
        ][..],
        &times(options),
    ]
    .concat();
    let report = run("consort", &arguments)?;
    let mut sample = report.calls()?;
    sample.errors = report.errors(&["/errors", "/missing"])?;
    Ok(sample)
}

/// Returns the figures of `consort demo --kills`, which ends with an error if a request has failed or the rate has not come back:
/// the figures say so.
pub(crate) fn kills(arguments: &[String]) -> anyhow::Result<Value> {
    run("consort", arguments).map(|report| report.figures)
}

pub(crate) fn grid(arguments: &[String]) -> anyhow::Result<Value> {
    let report = run("consort", arguments)?;
    if !report.is_success {
        bail!("`consort {}` has failed", arguments.join(" "));
    }
    Ok(report.figures)
}

pub(crate) struct Calling<'a> {
    pub(crate) at: &'a str,
    pub(crate) pids: &'a [u32],
    pub(crate) clients: usize,
    pub(crate) callers: usize,
    pub(crate) is_pooled: bool,
    pub(crate) keys: u32,
    pub(crate) reads: f64,
}

pub(crate) fn calling(load: &Calling<'_>, options: &Options) -> anyhow::Result<Both> {
    let pids: Vec<String> = load.pids.iter().map(u32::to_string).collect();
    let mut arguments = vec![
        "perf".to_owned(),
        format!("--hotrod={}", load.at),
        format!("--server-pids={}", pids.join(",")),
        format!("--clients={}", load.clients),
        format!("--invokers={}", load.callers),
        format!("--keys={}", load.keys),
        format!("--reads={}", load.reads),
        "--json".to_owned(),
    ];
    arguments.extend(load.is_pooled.then(|| "--pooled".to_owned()));
    arguments.extend(times(options));
    run("consort", &arguments)?.requests()
}

pub(crate) fn ping_pong(size: usize, reads: f64, options: &Options) -> anyhow::Result<Both> {
    let arguments = [&[format!("--size={size}"), format!("--reads={reads}")][..], &times(options)].concat();
    run("ping-pong", &arguments)?.requests()
}

pub(crate) fn chunked_values(at: &str, options: &Options) -> anyhow::Result<Value> {
    let megabytes = format!("--megabytes={}", options.streamed_mb());
    let seconds = format!("--time={}", options.time().as_secs_f64());
    let report = run("chunked-values", &[format!("--server={at}"), megabytes, seconds])?;
    if report.is_success {
        Ok(report.figures)
    } else {
        bail!("`chunked-values` has failed: {}", report.figures)
    }
}

pub(crate) struct Steady<'a> {
    pub(crate) uri: &'a str,
    pub(crate) pid: u32,
    pub(crate) size: usize,
    pub(crate) reads: f64,
}

pub(crate) fn steady(load: &Steady<'_>, options: &Options) -> anyhow::Result<(Both, f64)> {
    let own = [
        format!("--server={}", load.uri),
        format!("--server-pid={}", load.pid),
        format!("--size={}", load.size),
        format!("--reads={}", load.reads),
    ];
    let report = run("open_loop", &[&own[..], &times(options)].concat())?;
    Ok((report.requests()?, report.number("/connected_ms")?))
}

pub(crate) fn senders(threads: usize, options: &Options) -> anyhow::Result<Sample> {
    let arguments = [&[format!("--threads={threads}")][..], &times(options)].concat();
    run("senders", &arguments)?.multicasts(&["/lost"])
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// S003-5: parts that measure calls measure the same ones, whatever the command's own default is.
    #[test]
    fn calls_are_of_the_configured_kind() {
        let arguments = |line: &[&str]| {
            let options = Options::parse_from([&["bench"], line].concat());
            consort_arguments(&Load::calls(&options), 3, &options)
        };
        let usual = arguments(&["--quick"]);
        let wanted = ["uperf", "--threads=25", "--oob=false", "--json", "--members=3"];
        assert_eq!(usual[..5], wanted);
        assert_eq!(usual[5..], ["--time=1", "--warmup=0.3"]);
        assert!(arguments(&["--oob"]).contains(&"--oob=true".to_owned()));
    }

    #[test]
    fn multicasts_are_of_the_first_size() {
        let options = Options::parse_from(["bench", "--sizes=7,8", "--senders=2"]);
        let arguments = consort_arguments(&Load::multicasts("udp.xml", &options), 4, &options);
        assert_eq!(arguments[..4], ["mperf", "--threads=2", "--config=udp.xml", "--size=7"]);
    }

    #[test]
    fn a_failure_without_figures_is_an_error() {
        let errors = |lost, end: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo '{{\"lost\": {lost}, \"reordered\": 1}}'; {end}")]);
            run_by(command, "sh", &[]).unwrap().errors(&["/lost"]).unwrap()
        };
        assert_eq!(errors(0, "exit 0"), 0);
        assert_eq!(errors(0, "exit 1"), 1);
        assert_eq!(errors(5, "exit 1"), 5);
        assert_eq!(errors(5, "exit 0"), 5);
    }

    #[test]
    fn a_program_without_figures_reports_the_reason() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no luck >&2; exit 3"]);
        let error = run_by(command, "sh", &[]).err().unwrap().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no luck"), "{error}");
    }
}
