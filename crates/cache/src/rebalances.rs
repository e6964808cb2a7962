use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A cache's rebalances here, each from the topology that begins a state transfer to the one that ends it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RebalanceTimes {
    /// Rebalances ended since the opening.
    pub ended: u64,
    /// Their total time.
    pub total: Duration,
    /// Time of the last one.
    pub last: Option<Duration>,
    /// Time of the current one so far.
    pub running: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct Rebalances(Mutex<(RebalanceTimes, Option<Instant>)>);

impl Rebalances {
    pub(crate) fn note(&self, is_moving: bool, now: Instant) {
        let (times, began) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_moving {
            began.get_or_insert(now);
        } else if let Some(began) = began.take() {
            let took = now.saturating_duration_since(began);
            times.ended += 1;
            times.total += took;
            times.last = Some(took);
        }
    }

    pub(crate) fn times(&self, now: Instant) -> RebalanceTimes {
        let (times, began) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        RebalanceTimes { running: began.map(|began| now.saturating_duration_since(began)), ..times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebalance_takes_from_the_first_topology_that_moves_to_the_first_that_does_not() {
        let (rebalances, start) = (Rebalances::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        rebalances.note(false, at(0));
        assert_eq!(rebalances.times(at(1)), RebalanceTimes::default());
        rebalances.note(true, at(2));
        rebalances.note(true, at(3));
        let running = RebalanceTimes { running: Some(Duration::from_secs(3)), ..RebalanceTimes::default() };
        assert_eq!(rebalances.times(at(5)), running);
        rebalances.note(false, at(6));
        rebalances.note(false, at(7));
        rebalances.note(true, at(8));
        rebalances.note(false, at(9));
        let [total, last] = [5, 1].map(Duration::from_secs);
        assert_eq!(
            rebalances.times(at(10)),
            RebalanceTimes { ended: 2, total, last: Some(last), running: None }
        );
    }
}
