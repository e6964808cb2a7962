//! A process's use of CPU and memory, from /proc.

use std::time::Duration;

/// Returns the CPU time of this process, user and system.
pub fn cpu() -> Duration {
    cpu_in("self")
}

/// Returns the CPU time of a process; zero if it does not exist.
pub fn cpu_of(id: u32) -> Duration {
    cpu_in(&id.to_string())
}

fn cpu_in(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in brackets may contain spaces; fields 14 and 15 are utime and stime in ticks of 10 ms.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Returns the peak resident megabytes since this process's start or [`forget_peak_memory`].
pub fn peak_memory_mb() -> f64 {
    memory_in("self", "VmHWM:")
}

/// Returns the peak resident megabytes of a process; 0 if it does not exist.
pub fn peak_memory_mb_of(id: u32) -> f64 {
    memory_in(&id.to_string(), "VmHWM:")
}

/// Returns the resident megabytes of a process; 0 if it does not exist.
pub fn memory_mb_of(id: u32) -> f64 {
    memory_in(&id.to_string(), "VmRSS:")
}

fn memory_in(process: &str, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_000.0
}

/// Resets [`peak_memory_mb`] to the present. Returns whether the kernel supports it.
pub fn forget_peak_memory() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_that_is_forgotten_counts_no_more() {
        // Large enough for pages of its own, which are freed with it.
        drop(std::hint::black_box(vec![1_u8; 100_000_000]));
        let before = peak_memory_mb();
        assert!(before > 100.0, "{before}");
        if forget_peak_memory() {
            assert!(peak_memory_mb() < before - 50.0, "{} after {before}", peak_memory_mb());
        }
    }
}
