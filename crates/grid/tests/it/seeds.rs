//! Runs of many seeds: `SEEDS` sets their number, `SEED` selects one seed and prints its story.

use std::panic::{RefUnwindSafe, catch_unwind};

/// Runs this many seeds, unless the environment sets another number, and reports which fail; `run` also gets whether
/// to print its story. Returns the results of the runs.
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
