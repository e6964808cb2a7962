//! For calls that are too short for the clock.

use std::time::{Duration, Instant};

/// Far longer than reading the clock, and mostly shorter than a thread's time slice, so that other processes
/// disturb few slices.
const SLICE: Duration = Duration::from_millis(1);

/// The upper bound of the fastest tenth of all slices, because other load only adds time. The Java program
/// measures in the same way.
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
