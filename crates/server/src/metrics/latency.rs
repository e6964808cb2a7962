//! A histogram of the duration of clients' requests.
//!
//! Reading the clock costs as much as a good part of a request. So a connection reads it when it starts the requests of one read,
//! and when all are answered. A request that waits for other members has its own end. The time in the system's buffers is
//! unknown.

use std::time::{Duration, Instant};

use consort_hotrod::Opcode;

use crate::metrics::cache_stats::Count;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Read,
    Write,
    Other,
}

const CLASSES: usize = Class::ALL.len();

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    pub(crate) const fn of(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Get | Opcode::ContainsKey | Opcode::GetWithVersion | Opcode::GetWithMetadata => {
                Self::Read
            }
            Opcode::Put
            | Opcode::PutIfAbsent
            | Opcode::Replace
            | Opcode::ReplaceIfUnmodified
            | Opcode::Remove
            | Opcode::RemoveIfUnmodified => Self::Write,
            _ => Self::Other,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// The buckets' upper bounds, in microseconds and as printed in seconds; one more bucket is for longer requests.
pub(crate) const BOUNDS: [(u64, &str); 12] = [
    (10, "0.00001"),
    (25, "0.000025"),
    (50, "0.00005"),
    (100, "0.0001"),
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (10_000, "0.01"),
    (100_000, "0.1"),
    (1_000_000, "1.0"),
    (10_000_000, "10.0"),
];

const BUCKETS: usize = BOUNDS.len() + 1;

fn bucket(time: Duration) -> usize {
    BOUNDS.iter().position(|(bound, _)| time <= Duration::from_micros(*bound)).unwrap_or(BOUNDS.len())
}

#[derive(Default)]
pub(crate) struct Times([OfClass; CLASSES]);

#[derive(Default)]
struct OfClass {
    buckets: [Count; BUCKETS],
    nanoseconds: Count,
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Histogram {
    /// Requests within each bound, and beyond the last.
    pub(crate) buckets: [i64; BUCKETS],
    pub(crate) nanoseconds: i64,
}

impl Times {
    pub(crate) fn add(&self, class: Class, count: u32, time: Duration) {
        let of = &self.0[class as usize];
        of.buckets[bucket(time)].add(count as usize);
        let together = time.as_nanos().saturating_mul(count.into());
        of.nanoseconds.add(usize::try_from(together).unwrap_or(usize::MAX));
    }

    pub(crate) fn add_to(&self, class: Class, sums: &mut Histogram) {
        let of = &self.0[class as usize];
        for (sum, count) in sums.buckets.iter_mut().zip(&of.buckets) {
            *sum += count.get();
        }
        sums.nanoseconds += of.nanoseconds.get();
    }
}

pub(crate) struct Batch {
    began: Instant,
    answered: [u32; CLASSES],
}

impl Batch {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), answered: [0; CLASSES] }
    }

    pub(crate) const fn began(&self) -> Instant {
        self.began
    }

    pub(crate) const fn answered(&mut self, opcode: Opcode) {
        self.answered[Class::of(opcode) as usize] += 1;
    }

    /// All requests of the batch that do not wait are answered.
    pub(crate) fn end(self, times: &Times) {
        if self.answered == [0; CLASSES] {
            return;
        }
        let time = self.began.elapsed();
        for class in Class::ALL {
            let count = self.answered[class as usize];
            if count > 0 {
                times.add(class, count, time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_increase_and_equal_their_texts() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (micros, text) in BOUNDS {
            let seconds: f64 = text.parse().unwrap();
            assert!((seconds * 1e6 - micros as f64).abs() < 1e-6, "{text}");
            let bound = Duration::from_micros(micros);
            assert_eq!(bucket(bound) + 1, bucket(bound + Duration::from_nanos(1)));
        }
        assert_eq!((bucket(Duration::ZERO), bucket(Duration::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn each_request_of_a_batch_counts_in_its_class_with_the_batch_time() {
        let times = Times::default();
        let mut batch = Batch::begin();
        for opcode in [Opcode::Get, Opcode::Put, Opcode::Get, Opcode::Ping] {
            batch.answered(opcode);
        }
        batch.end(&times);
        Batch::begin().end(&times);
        times.add(Class::Write, 2, Duration::from_secs(60));
        let of = |class| {
            let mut sums = Histogram::default();
            times.add_to(class, &mut sums);
            sums
        };
        assert_eq!(Class::ALL.map(|class| of(class).buckets.iter().sum::<i64>()), [2, 3, 1]);
        assert_eq!(of(Class::Write).buckets[BUCKETS - 1], 2);
        assert!(of(Class::Write).nanoseconds >= 120_000_000_000);
        assert!(of(Class::Read).nanoseconds > 0);
    }
}
