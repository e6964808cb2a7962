//! Resource use of this process from Linux' /proc, named as by Prometheus' client libraries.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::http::exposition::{Exposition, Kind};

pub(crate) fn append(out: &mut Exposition) {
    out.family(Kind::Counter, "process_cpu_seconds", "CPU time of this process, user and system.")
        .value(&[], consort_procstat::process::cpu().as_secs_f64());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(kilobytes) = field(&status, "VmRSS:") {
        out.family(Kind::Gauge, "process_resident_memory_bytes", "Resident memory.")
            .value(&[], kilobytes * 1024);
    }
    if let Some(kilobytes) = field(&status, "VmSize:") {
        out.family(Kind::Gauge, "process_virtual_memory_bytes", "Virtual memory.")
            .value(&[], kilobytes * 1024);
    }
    if let Some(threads) = field(&status, "Threads:") {
        out.family(Kind::Gauge, "process_threads", "Threads.").value(&[], threads);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One of the descriptors is that of the directory itself.
        out.family(Kind::Gauge, "process_open_fds", "Open descriptors.")
            .value(&[], open.count().saturating_sub(1));
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = field(&limits, "Max open files") {
        out.family(Kind::Gauge, "process_max_fds", "Descriptors that may be open.").value(&[], most);
    }
    out.family(Kind::Gauge, "process_start_time_seconds", "When it was started, since 1970.")
        .value(&[], started().as_secs_f64());
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Computed once, because the result changes if the clock is set.
fn started() -> Duration {
    static STARTED: OnceLock<Duration> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        let uptime = uptime.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Field 22 counts from the system's start, in ticks of 10 ms; the name in brackets may hold spaces.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks =
            after_name.split_whitespace().nth(19).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let age = uptime - ticks as f64 / 100.0;
        now.saturating_sub(Duration::try_from_secs_f64(age).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_this_process_are_plausible() {
        let mut out = Exposition::for_client("");
        append(&mut out);
        let out = out.finish();
        let value = |name: &str| -> f64 {
            let line = out
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("{name}: {out}"));
            line.trim().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_open_fds ") >= 3.0 && value("process_max_fds ") >= value("process_open_fds "));
        assert!(value("process_threads ") >= 1.0);
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds ");
        assert!((-1.0..3_600.0).contains(&age), "{age}");
    }
}
