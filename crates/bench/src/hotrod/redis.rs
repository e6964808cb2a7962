//! redis-server under redis-benchmark, with 16 requests sent together on each connection.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::server_process::ServerProcess;
use super::{KEYS, READS, SIZE};
use crate::options::Options;
use crate::sample::Sample;

const PORT: u16 = 6_399;

const PIPELINE: &str = "16";

/// redis-benchmark's default.
const CONNECTIONS: &str = "50";

/// Gives the number of requests of a run.
const REQUESTS_SEC: f64 = 500_000.0;

pub(super) struct Redis(ServerProcess);

/// `None` if the server or its benchmark is not installed.
pub(super) fn version() -> Option<String> {
    let ask = |program| Command::new(program).arg("--version").stdin(Stdio::null()).output().ok();
    let (server, _) = ask("redis-server").zip(ask("redis-benchmark"))?;
    Some(String::from_utf8_lossy(&server.stdout).trim().to_owned())
}

impl Redis {
    pub(super) fn start() -> anyhow::Result<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &PORT.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no"]);
        let redis = Self(ServerProcess::start(command, "redis-server", "Ready to accept connections", PORT)?);
        // Enough requests to draw every key.
        redis.ask("set", KEYS * 12)?;
        Ok(redis)
    }

    /// Reads and writes alone, weighted by their parts of the load.
    pub(super) fn run(&self, options: &Options) -> anyhow::Result<Sample> {
        let requests = (options.time().as_secs_f64() * REQUESTS_SEC) as u32;
        let ((read, read_us), (written, write_us)) = (self.ask("get", requests)?, self.ask("set", requests)?);
        Ok(Sample {
            rate: 1.0 / (READS / read + (1.0 - READS) / written),
            cpu_us: READS * read_us + (1.0 - READS) * write_us,
            latency: None,
            rss_mb: self.0.peak_memory_mb(),
            errors: 0,
        })
    }

    fn ask(&self, kind: &str, requests: u32) -> anyhow::Result<(f64, f64)> {
        let before = self.0.cpu();
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &PORT.to_string(), "-t", kind, "-n", &requests.to_string(), "-r"]);
        command.args([
            &KEYS.to_string(),
            "-d",
            &SIZE.to_string(),
            "-c",
            CONNECTIONS,
            "-P",
            PIPELINE,
            "--csv",
        ]);
        let output = command.stdin(Stdio::null()).output().context("starting redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "redis-benchmark ended with {}: {text}", output.status);
        let rate =
            rate(&text).with_context(|| format!("no rate in the output of redis-benchmark: {text}"))?;
        let taken = self.0.cpu().saturating_sub(before).as_secs_f64();
        Ok((rate, taken * 1e6 / f64::from(requests)))
    }
}

fn rate(text: &str) -> Option<f64> {
    let cell = text.lines().last()?.split(',').nth(1)?;
    cell.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn the_rate_is_in_the_last_line() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"662251.69\",\"0.627\"\n";
        assert_eq!(rate(text), Some(662_251.69));
        assert_eq!(rate("Could not connect"), None);
    }
}
