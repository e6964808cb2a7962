//! How long after the end of a server requests are answered as before: samples of a count, taken each millisecond.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(1);

/// The rate has to be back in both: some answers after the pause are not the previous rate.
const WINDOWS: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// Samples are examined this often: the pause may begin a little after the kill.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Fewer servers share the load, and entries move meanwhile.
const SHARE: f64 = 0.8;

/// The answered requests after a kill.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The requests per second before the kill.
    pub before: f64,
    all: Vec<(Duration, u64)>,
}

impl Samples {
    /// Creates an empty list, after a load of `before` requests per second.
    pub const fn new(before: f64) -> Self {
        Self { before, all: Vec::new() }
    }

    /// Adds the number of requests answered until `at`, the time since the kill. Samples come in the order of their times.
    pub fn add(&mut self, at: Duration, answered: u64) {
        self.all.push((at, answered));
    }

    /// Returns when the longest pause without an answer ended, if it did.
    pub fn until_answered(&self) -> Option<Duration> {
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

    /// Returns the time from which 80 % of the previous rate hold again, in 25 ms and in 250 ms, if ever.
    pub fn until_previous_rate(&self) -> Option<Duration> {
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
pub fn sample(operations: &dyn Fn() -> u64, before: f64, killed: Instant, longest: Duration) -> Samples {
    let mut samples = Samples::new(before);
    let mut looked = Duration::ZERO;
    loop {
        let at = killed.elapsed();
        samples.add(at, operations());
        if at - looked >= LOOK_INTERVAL {
            looked = at;
            if at > longest || samples.until_previous_rate().is_some() {
                return samples;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Servers in the order of their view: the first is its coordinator, and a server that starts again becomes the last one.
#[derive(Clone, Debug)]
pub struct ViewOrder(Vec<usize>);

impl ViewOrder {
    /// Creates the order in which `servers` servers have started.
    pub fn new(servers: usize) -> Self {
        Self((0..servers).collect())
    }

    /// Returns the server of the next kill, which starts again afterwards, and whether it is the coordinator. Each position of
    /// the view has its turn.
    pub fn next_victim(&mut self, kills: usize) -> (usize, bool) {
        let position = kills % self.0.len();
        let victim = self.0.remove(position);
        self.0.push(victim);
        (victim, position == 0)
    }
}

/// The middle and the end of a list of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The median, or between the two in the middle.
    pub median: Duration,
    /// The longest.
    pub worst: Duration,
}

impl Spread {
    /// Of no times it is zero.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let middle = times.len() / 2;
        let median = match times.len() {
            0 => Duration::ZERO,
            count if count % 2 == 0 => (times[middle - 1] + times[middle]) / 2,
            _ => times[middle],
        };
        Self { median, worst: times.last().copied().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_are_at_each_position_of_the_view_in_turn() {
        let mut order = ViewOrder::new(3);
        let victims: Vec<(usize, bool)> = (0..4).map(|kills| order.next_victim(kills)).collect();
        assert_eq!(victims, [(0, true), (2, false), (2, false), (1, true)]);
    }

    #[test]
    fn median_of_an_even_number_is_between_the_two_in_the_middle() {
        let of = |all: &[u64]| Spread::of(all.iter().map(|&ms| Duration::from_millis(ms)).collect()).median;
        assert_eq!(of(&[1, 4, 2]), Duration::from_millis(2));
        assert_eq!(of(&[9, 2, 4, 1]), Duration::from_millis(3));
        assert_eq!(of(&[]), Duration::ZERO);
    }

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

    /// The rate of 250 ms is enough from the first answer on, and that of 25 ms only 50 ms later.
    #[test]
    fn one_answer_within_a_pause_is_not_the_previous_rate() {
        let done = |ms: u64| 10 * ms.min(3) + u64::from(ms >= 150) + 20 * ms.saturating_sub(200);
        let all = (0..1_000).map(|ms| (Duration::from_millis(ms), done(ms))).collect();
        let samples = Samples { before: 10_000.0, all };
        assert_eq!(samples.until_answered(), Some(Duration::from_millis(150)));
        assert!(samples.has_rate(Duration::from_millis(150), WINDOWS[1]));
        let resumed = samples.until_previous_rate().expect("the rate comes back");
        assert!((180..=201).contains(&resumed.as_millis()), "{resumed:?}");
    }

    #[test]
    fn samples_end_with_the_previous_rate_or_with_the_time() {
        let begin = Instant::now();
        let steady = || begin.elapsed().as_millis() as u64;
        let samples = sample(&steady, 1_000.0, begin, Duration::from_secs(60));
        assert!(samples.until_previous_rate().is_some());
        let samples = sample(&|| 7, 1_000.0, Instant::now(), Duration::from_millis(1));
        assert_eq!(samples.until_previous_rate(), None);
        assert!(samples.all.iter().all(|(_, done)| *done == 7));
    }
}
