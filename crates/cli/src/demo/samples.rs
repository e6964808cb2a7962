//! Answered requests after a kill, sampled each millisecond.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(1);

/// The rate has to be back in both: some answers after the pause are not the previous rate.
const WINDOWS: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// Fewer servers share the load, and entries move meanwhile.
const SHARE: f64 = 0.8;

pub(super) struct Samples {
    /// The requests per second before the kill.
    pub(super) before: f64,
    /// The times since the kill, with the requests answered until then.
    all: Vec<(Duration, u64)>,
}

impl Samples {
    /// Returns when the longest pause without an answer ended, if it did.
    pub(super) fn until_answered(&self) -> Option<Duration> {
        let mut last = self.all.first().copied().unwrap_or_default();
        let (mut longest, mut until) = (Duration::ZERO, Duration::ZERO);
        for &(at, done) in &self.all {
            if done > last.1 {
                if at - last.0 > longest {
                    (longest, until) = (at - last.0, at);
                }
                last = (at, done);
            }
        }
        let end = self.all.last().map_or(Duration::ZERO, |(at, _)| *at);
        (end - last.0 <= longest).then_some(until)
    }

    /// Returns the time from which the previous rate holds again, if ever.
    pub(super) fn until_previous_rate(&self) -> Option<Duration> {
        let answered = self.until_answered()?;
        let mut begins = self.all.iter().map(|(at, _)| *at).filter(|at| *at >= answered);
        begins.find(|&begin| WINDOWS.iter().all(|&window| self.has_rate(begin, window)))
    }

    fn has_rate(&self, begin: Duration, window: Duration) -> bool {
        let at = |time: Duration| self.all.get(self.all.partition_point(|(at, _)| *at < time));
        let (Some(first), Some(last)) = (at(begin), at(begin + window)) else { return false };
        let seconds = (last.0 - first.0).as_secs_f64();
        (last.1 - first.1) as f64 >= self.before * SHARE * seconds
    }
}

/// Samples until the previous rate is reached, or the time is over.
pub(super) fn sample(
    operations: &dyn Fn() -> u64,
    before: f64,
    killed: Instant,
    longest: Duration,
) -> Samples {
    let mut samples = Samples { before, all: Vec::new() };
    let mut looked = Duration::ZERO;
    loop {
        let at = killed.elapsed();
        samples.all.push((at, operations()));
        // The pause may begin a little after the kill.
        if at - looked >= 2 * WINDOWS[1] {
            looked = at;
            if at > longest || samples.until_previous_rate().is_some() {
                return samples;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 requests per millisecond, but for a pause.
    fn with_pause(from: u64, until: u64, per_ms_after: u64) -> Samples {
        let done = |ms: u64| 10 * ms.min(from) + per_ms_after * ms.saturating_sub(until);
        let all = (0..1_000).map(|ms| (Duration::from_millis(ms), done(ms))).collect();
        Samples { before: 10_000.0, all }
    }

    #[test]
    fn pause_after_a_kill_ends_with_the_first_answer() {
        let samples = with_pause(3, 80, 10);
        assert_eq!(samples.until_answered(), Some(Duration::from_millis(81)));
        assert_eq!(samples.until_previous_rate(), Some(Duration::from_millis(81)));
    }

    #[test]
    fn pause_that_does_not_end_has_no_end() {
        let samples = with_pause(500, 1_000, 10);
        assert_eq!((samples.until_answered(), samples.until_previous_rate()), (None, None));
    }

    #[test]
    fn a_few_answers_are_not_the_previous_rate() {
        assert_eq!(with_pause(3, 80, 7).until_previous_rate(), None);
        assert!(with_pause(3, 80, 8).until_previous_rate().is_some());
    }
}
