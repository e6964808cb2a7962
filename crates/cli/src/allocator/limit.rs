//! The limit of the process's memory: free memory goes back at once during a shortage, which is logged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use consort_cache::{MemoryUsage, ProcessMemory, watch_memory};
use consort_procstat::grouped;

use super::reserve::amount;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// Processes with a lower limit use pages of 4 KiB only, because one entry keeps a huge page of 2 MiB resident.
/// A cache with a `max-size` of 50 MB and values of 1 to 100 KB took 2.5 times as much with huge pages and 1.7
/// times without; an empty server 33 and 27 MiB. With 300 MB, reads of an embedded cache take 20 % less CPU
/// with huge pages.
const HUGE_PAGES_FROM: u64 = 1 << 30;

/// `--reserve`.
pub(super) static KEEPS_MEMORY: AtomicBool = AtomicBool::new(false);

/// The option of commands with a memory limit.
#[derive(Args)]
pub(crate) struct Memory {
    /// Limit of this process's memory, entries and everything else: 2GB or 2GiB, for example. Default: 80 % of the machine's
    /// memory. A limit of the control group (a container's) applies in any case. If less than a quarter of the limit
    /// (at most 2 GiB) is left, writes that add entries fail with an error that names the limit; reads and removals continue.
    #[arg(long, value_name = "SIZE", value_parser = amount)]
    memory: Option<u64>,
}

impl Memory {
    pub(crate) fn watch(&self, reserved: u64) -> anyhow::Result<ProcessMemory> {
        let mut log = Log::default();
        let mut purged = Instant::now();
        let look = move |memory: &ProcessMemory| {
            memory.note_reserved(reserved);
            let now = Instant::now();
            let usage = memory.usage();
            if now.duration_since(purged) >= PURGE_INTERVAL && !KEEPS_MEMORY.load(Ordering::Relaxed) {
                purged = now;
                super::thread_cache::sweep_parked();
                if usage.is_short || usage.used > usage.high_water_mark {
                    super::return_free_memory();
                } else {
                    super::return_expired_memory();
                }
            }
            log.log_shortage(&usage, now);
        };
        let option = self.memory.map(|bytes| (bytes, "--memory"));
        let memory = watch_memory(option, look).context("memory cannot be measured")?;
        let MemoryUsage { limit, high_water_mark, .. } = memory.usage();
        if limit.bytes < HUGE_PAGES_FROM
            && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
        {
            tracing::warn!("cannot turn huge pages off ({error}): free memory may not return to the system");
        }
        tracing::info!(
            "memory: {} may be used ({}); writes that add entries are refused above {}",
            megabytes(limit.bytes),
            limit.of,
            megabytes(high_water_mark)
        );
        Ok(memory)
    }
}

#[derive(Default)]
struct Log {
    logged_at: Option<Instant>,
    refused: u64,
}

impl Log {
    fn log_shortage(&mut self, usage: &MemoryUsage, now: Instant) {
        let is_due = self.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL);
        if usage.is_short && is_due {
            self.logged_at = Some(now);
            tracing::warn!(
                "memory is short: {} of {} are in use ({}), {} of them by entries; writes that add entries are refused, {} so \
                 far. Remove entries, raise the limit, or add members",
                megabytes(usage.used),
                megabytes(usage.limit.bytes),
                usage.limit.of,
                megabytes(usage.entries),
                usage.refused
            );
        } else if !usage.is_short && self.logged_at.take().is_some() {
            tracing::info!(
                "memory is no longer short: {} of {} are in use; {} writes were refused meanwhile",
                megabytes(usage.used),
                megabytes(usage.limit.bytes),
                usage.refused - self.refused
            );
            self.refused = usage.refused;
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", grouped(bytes as f64 / 1e6))
}
