//! What a trace point costs that is off (S000-80): the look at a layer's switch, which the stack takes once per batch
//! and layer, and a point of the crate `tracing` that no subscriber wants.

use std::hint::black_box;
use std::time::Duration;

use consort_group::trace::Switch;

use super::timing::nanos;
use crate::options::Options;
use crate::sample::Runs;
use crate::targets::{NANOS_ADDED, Row, Target};

/// What a point may take.
const NANOS_MAX: f64 = 1.0;

/// Measurements with and without the point in turn, within one run.
const TURNS: u32 = 10;

/// Points between two looks at the loop's own counter.
const POINTS: usize = 1_000;

pub(super) fn measure(options: &Options) -> Vec<Row> {
    let target = Some(Target::AtMost(NANOS_MAX));
    let of = |subject: &str| (subject.to_owned(), NANOS_ADDED);
    vec![
        Row::alone(of("a layer's trace that is off"), &runs(options, layer), target),
        Row::alone(
            of("a point of `tracing` that is off"),
            &runs(options, |_| tracing::trace!("never")),
            target,
        ),
    ]
}

/// What is left of the loop without the point is not the point's. Both are measured in turn.
fn runs(options: &Options, point: impl Fn(&Switch)) -> Runs {
    let time = options.time() / 10 / TURNS;
    let turn = |_| (each(time, &point) - each(time, |_| {})).max(0.0);
    let run = |_| Runs((0..TURNS).map(turn).collect()).median().unwrap_or_default();
    Runs((0..options.runs()).map(run).collect())
}

/// Nanoseconds of a turn.
fn each(time: Duration, call: impl Fn(&Switch)) -> f64 {
    let switch = Switch::default();
    let loop_nanos = nanos(time, || {
        for _ in 0..POINTS {
            call(black_box(&switch));
        }
    });
    loop_nanos / POINTS as f64
}

fn layer(switch: &Switch) {
    if switch.is_on() {
        tell();
    }
}

#[cold]
fn tell() {
    black_box(());
}
