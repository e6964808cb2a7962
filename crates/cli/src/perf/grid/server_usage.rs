use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use consort_procstat::process;

use super::figures::Total;
use super::load::Test;

pub(super) struct ServerProcesses(Vec<u32>);

pub(super) struct ServerUsage {
    pub(super) cpu_s: f64,
    pub(super) rss_mb: f64,
}

impl ServerProcesses {
    pub(super) fn new(pids: &[u32]) -> anyhow::Result<Self> {
        for pid in pids {
            ensure!(Path::new(&format!("/proc/{pid}")).exists(), "--server-pids: there is no process {pid}");
        }
        Ok(Self(pids.to_vec()))
    }

    pub(super) async fn during(&self, test: &Test) -> Option<ServerUsage> {
        if self.0.is_empty() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(test.warmup_ms)).await;
        let before = self.cpu();
        tokio::time::sleep(Duration::from_secs_f64(test.settings.time)).await;
        let cpu_s = self.cpu().saturating_sub(before).as_secs_f64();
        let rss_mb = self.0.iter().map(|&pid| process::peak_memory_mb_of(pid)).fold(0.0, f64::max);
        Some(ServerUsage { cpu_s, rss_mb })
    }

    fn cpu(&self) -> Duration {
        self.0.iter().map(|&pid| process::cpu_of(pid)).sum()
    }
}

impl ServerUsage {
    pub(super) fn text(&self, total: &Total) -> String {
        let cpu_us = total.each_us(self.cpu_s);
        format!("Servers: {cpu_us:.2} us of CPU per request; at most {:.0} MB of memory in one", self.rss_mb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_process_cannot_be_watched() {
        assert!(ServerProcesses::new(&[std::process::id()]).is_ok());
        let error = ServerProcesses::new(&[u32::MAX]).err().unwrap().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }
}
