//! Memory that a process takes before it needs it.
//!
//! The kernel clears memory when it is touched, and a virtual machine may have to get it from the hypervisor: a
//! member that joins and gets a gigabyte mostly waits for that (docs/lab/2026-11-performance.md).

use std::collections::TryReserveError;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use consort_procstat::grouped;
use consort_server::amount_of_bytes;

use super::available_memory::{AvailableMemory, available_memory};

/// The option of commands that can reserve memory.
#[derive(Args)]
pub(crate) struct Reserve {
    /// Reserve this much memory before joining, and keep it, so that new entries do not wait for the kernel: 2GB or 2GiB, for
    /// example. Without it, memory is taken when it is needed and returned 10 s after it is free.
    #[arg(long, value_name = "SIZE", value_parser = amount)]
    reserve: Option<u64>,
}

pub(crate) fn amount(text: &str) -> Result<u64, String> {
    amount_of_bytes(text).ok_or_else(|| "no amount of memory, such as 500MB, 2GB or 1.5GiB".to_owned())
}

/// The allocator takes it from the same memory as smaller blocks, which can use it afterwards. With the
/// allocator's own bytes it is a 32nd of the allocator's unit, so that no gap is left.
const BLOCK: usize = (1 << 20) - (64 << 10);

impl Reserve {
    pub(crate) fn bytes(&self) -> u64 {
        self.reserve.unwrap_or_default()
    }

    /// Takes the memory with all CPUs, while there are no other threads.
    ///
    /// # Errors
    ///
    /// If there is not enough memory; nothing is kept then.
    pub(crate) fn take(&self) -> anyhow::Result<()> {
        let Some(bytes) = self.reserve else { return Ok(()) };
        let begin = Instant::now();
        check(bytes)?;
        super::keep_memory();
        // All at once, because another allocation would take a freed block again.
        let blocks = blocks(bytes.div_ceil(BLOCK as u64)).with_context(|| too_much(bytes))?;
        drop(blocks);
        let took = begin.elapsed().as_secs_f64();
        tracing::info!("reserved {} of memory in {took:.1} s", megabytes(bytes));
        Ok(())
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", grouped(bytes as f64 / 1e6))
}

fn too_much(bytes: u64) -> String {
    format!("--reserve: {} of memory are not available", megabytes(bytes))
}

pub(crate) fn check(bytes: u64) -> anyhow::Result<()> {
    available_memory().map_or(Ok(()), |available| fits(bytes, &available))
}

fn fits(bytes: u64, available: &AvailableMemory) -> anyhow::Result<()> {
    if bytes > available.bytes {
        bail!("{}: {} has {} left", too_much(bytes), available.of, megabytes(available.bytes));
    }
    Ok(())
}

fn blocks(count: u64) -> Result<Vec<Vec<u8>>, TryReserveError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let part = |nth: usize| (nth as u64..count).step_by(threads).map(|_| block()).collect();
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|nth| scope.spawn(move || part(nth))).collect();
        let mut all = Vec::new();
        for taken in parts {
            let blocks: Result<Vec<_>, TryReserveError> =
                taken.join().unwrap_or_else(|why| resume_unwind(why));
            all.extend(blocks?);
        }
        Ok(all)
    })
}

fn block() -> Result<Vec<u8>, TryReserveError> {
    let mut block = Vec::new();
    block.try_reserve_exact(BLOCK)?;
    block.resize(BLOCK, 0);
    Ok(std::hint::black_box(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_those_of_definitions() {
        assert_eq!((amount("2GB"), amount("1.5 GiB")), (Ok(2_000_000_000), Ok(3 << 29)));
        for wrong in ["", "0", "-1GB", "2XB", "all"] {
            let error = amount(wrong).unwrap_err();
            assert!(error.starts_with("no amount of memory, such as"), "{wrong}: {error}");
        }
    }

    #[test]
    fn reservation_beyond_available_memory_is_refused_before_allocation() {
        let available = AvailableMemory { bytes: 1_000_000_000, of: "this machine".to_owned() };
        assert!(fits(1_000_000_000, &available).is_ok());
        let error = fits(1_000_000_001, &available).unwrap_err().to_string();
        assert_eq!(error, "--reserve: 1,000 MB of memory are not available: this machine has 1,000 MB left");
    }

    #[test]
    fn reserved_blocks_are_allocated_together() {
        for count in [0, 1, 5] {
            let blocks = blocks(count).unwrap();
            assert_eq!((blocks.len() as u64, blocks.iter().all(|block| block.len() == BLOCK)), (count, true));
        }
    }
}
