//! How long something takes that is too short for the clock.

use std::time::{Duration, Instant};

/// How long a slice lasts: far longer than reading the clock, and mostly shorter than the scheduler lets a thread run,
/// so that what else runs spoils few of them.
const SLICE: Duration = Duration::from_millis(1);

/// Nanoseconds of one call: the tenth part of slices for so long that was fastest ends there. What else the machine
/// does only ever adds. The Java program does the same.
pub(super) fn nanos(time: Duration, mut call: impl FnMut()) -> f64 {
    let mut slice = |calls: u64| {
        let begun = Instant::now();
        for _ in 0..calls {
            call();
        }
        begun.elapsed()
    };
    let mut calls = 1;
    while slice(calls) < SLICE {
        calls *= 2;
    }
    let end = Instant::now() + time;
    let mut slices = Vec::new();
    while slices.is_empty() || Instant::now() < end {
        slices.push(slice(calls).as_nanos() as f64 / calls as f64);
    }
    slices.sort_by(f64::total_cmp);
    slices[slices.len() / 10]
}
