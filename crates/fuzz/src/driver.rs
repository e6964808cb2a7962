//! Runs targets with inputs from a seed, and shows a broken rule for a replay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use consort_group::Rng;

use crate::mutate::{Shape, mutated};
use crate::rounds;
use crate::seen::Seen;
use crate::target::Target;

/// An input that takes longer counts as one that never ends.
const INPUT_TIME_MAX: Duration = Duration::from_secs(60);

/// The result of a target's run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Score {
    /// Sums, and the largest peak.
    pub seen: Seen,
    /// The duration.
    pub time: Duration,
}

/// An input that broke a rule.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The target.
    pub target: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// The number of inputs before it.
    pub nth: u64,
    /// The input.
    pub input: Vec<u8>,
}

/// Returns the input of this number, which has its own seed.
pub fn input(target: &Target, corpus: &[Vec<u8>], seed: u64, nth: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    match target.shape {
        Shape::Round => rounds::round(target.name, &mut rng),
        shape => mutated(&mut rng, corpus, shape),
    }
}

const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

/// Returns a target's real inputs and the committed ones in `fuzz/corpus`: inputs that broke a rule, and those of `cargo xtask
/// fuzz --coverage --keep`. Panics if one cannot be read.
pub fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut corpus = (target.corpus)();
    if let Ok(folder) = std::fs::read_dir(Path::new(CORPORA).join(target.name)) {
        let mut files: Vec<PathBuf> = folder.filter_map(|file| Some(file.ok()?.path())).collect();
        files.sort();
        let read = |file: &PathBuf| {
            std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        corpus.extend(files.iter().map(read));
    }
    corpus
}

/// Runs a target until it has had `runs` inputs, or packets in rounds; the error is the first input that broke a rule.
pub fn run(target: &'static Target, runs: u64, seed: u64) -> Result<Score, Box<Broken>> {
    let corpus = corpus(target);
    let mut score = Score::default();
    let begun = Instant::now();
    let watch = Watch::new(target.name, seed);
    // Inputs from the facts have to be accepted, and rounds begin with an unchanged recorded packet.
    for (nth, input) in corpus.iter().enumerate() {
        once(target, input, seed, nth as u64, &mut Score::default())?;
    }
    let mut nth = 0;
    while score.seen.given < runs {
        watch.begin(nth);
        let input = input(target, &corpus, seed, nth);
        once(target, &input, seed, nth, &mut score)?;
        nth += 1;
    }
    score.time = begun.elapsed();
    Ok(score)
}

fn once(
    target: &'static Target,
    input: &[u8],
    seed: u64,
    nth: u64,
    score: &mut Score,
) -> Result<(), Box<Broken>> {
    match catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        Ok(seen) => {
            score.seen.given += seen.given.max(1);
            score.seen.accepted += seen.accepted;
            score.seen.apart += seen.apart;
            score.seen.peak = score.seen.peak.max(seen.peak);
            Ok(())
        }
        Err(_) => Err(Box::new(Broken { target: target.name, seed, nth, input: input.to_vec() })),
    }
}

struct Watch {
    nth: Arc<AtomicU64>,
}

impl Watch {
    fn new(name: &'static str, seed: u64) -> Self {
        let nth = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&nth);
        std::thread::spawn(move || {
            let mut last = (u64::MAX, Instant::now());
            while let Some(nth) = watched.upgrade() {
                let now = nth.load(Ordering::Relaxed);
                drop(nth);
                if now != last.0 {
                    last = (now, Instant::now());
                } else if last.1.elapsed() > INPUT_TIME_MAX {
                    eprintln!(
                        "{name}: input {now} takes more than {INPUT_TIME_MAX:?}\n\
                         cargo xtask fuzz --target {name} --seed {seed} --input {now}"
                    );
                    std::process::abort();
                }
                std::thread::park_timeout(Duration::from_secs(1));
            }
        });
        Self { nth }
    }

    fn begin(&self, nth: u64) {
        self.nth.store(nth, Ordering::Relaxed);
    }
}

/// Removes each record of a round that is not needed to break the rule.
pub fn shrunk(target: &'static Target, broken: &Broken) -> Vec<u8> {
    let breaks = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    let mut best = broken.input.clone();
    let mut pieces = match target.shape {
        Shape::Round => rounds::records(&best),
        _ => best.chunks(1).map(<[u8]>::to_vec).collect(),
    };
    let mut size = pieces.len().div_ceil(2);
    while size > 0 && pieces.len() > 1 {
        let mut at = 0;
        while at < pieces.len() {
            let end = (at + size).min(pieces.len());
            let candidate: Vec<u8> = [&pieces[..at], &pieces[end..]].concat().concat();
            if breaks(&candidate) {
                pieces.drain(at..end);
                best = candidate;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    best
}
