//! Runs of many seeds: `SEEDS` says of how many, `SEED` of which one, with all that happens.

use std::panic::{RefUnwindSafe, catch_unwind};

/// Runs so many seeds, unless the environment says otherwise, and tells which fail; `run` is also told whether to print
/// what happens. Gives what the runs have.
pub(crate) fn every_seed<T>(usual: u64, run: impl Fn(u64, bool) -> T + RefUnwindSafe) -> Vec<T> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SEED") {
        return vec![run(seed, true)];
    }
    let count = number("SEEDS").unwrap_or(usual);
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    for seed in 0..count {
        match catch_unwind(|| run(seed, false)) {
            Ok(one) => all.push(one),
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds fail: {failed:?}", failed.len());
    all
}
