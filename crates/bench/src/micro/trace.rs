//! The cost of disabled tracing: the check of a layer's switch, once per batch and layer (S000-80), beside a
//! point of the crate `tracing`, which checks its own state, too, because the command's subscriber lets the
//! lines of layers' switches pass.

use std::hint::black_box;
use std::time::Duration;

use consort_group::trace::{Switch, TARGET};
use tracing_subscriber::EnvFilter;

use super::timing::nanos;
use crate::options::Options;
use crate::sample::Runs;
use crate::targets::{NANOS_ADDED, Row, Target};

const NANOS_MAX: f64 = 1.0;

const TURNS: u32 = 10;

const POINTS: usize = 1_000;

/// The filter of the `consort` command. Does nothing if the process has a subscriber.
pub(super) fn subscribe() {
    let filter = EnvFilter::new(format!("warn,{TARGET}=trace"));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

pub(super) fn measure(options: &Options) -> [Row; 2] {
    let of = |subject: &str| (subject.to_owned(), NANOS_ADDED);
    let (layer, point) = (runs(options, layer), runs(options, |_| tracing::trace!("never")));
    [
        Row::alone(of("a layer's trace that is off"), &layer, Some(Target::AtMost(NANOS_MAX))),
        Row::alone(of("a point of `tracing` that is off"), &point, None),
    ]
}

/// Less the loop's own time, measured in turn.
fn runs(options: &Options, point: impl Fn(&Switch)) -> Runs {
    let time = options.time() / 10 / TURNS;
    let turn = |_| each(time, &point) - each(time, |_| {});
    let run = |_| Runs((0..TURNS).map(turn).collect()).median().unwrap_or_default();
    Runs((0..options.runs()).map(run).collect())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// S000-80: the measured point is disabled while the layers' traces can be switched on.
    #[test]
    fn only_the_traces_of_layers_may_pass() {
        subscribe();
        assert!(tracing::enabled!(target: TARGET, tracing::Level::TRACE));
        assert!(!tracing::enabled!(tracing::Level::TRACE));
        assert!(tracing::enabled!(tracing::Level::WARN));
    }
}
