//! What a member and its caches count, for metrics. Nothing is counted for this on the way of an operation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_grid::{CacheMode, Node};
use consort_group::StackCount;

use crate::cache::Cache;
use crate::manager::CacheManager;

/// The rebalances of a cache, as this member sees them: from the topology with which entries begin to move to new owners
/// until the topology with which all are there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RebalanceTimes {
    /// Rebalances that have ended since the cache was opened here.
    pub ended: u64,
    /// How long these took together.
    pub total: Duration,
    /// How long the last of them took.
    pub last: Option<Duration>,
    /// For how long the one that runs has been running.
    pub running: Option<Duration>,
}

/// The same while it is counted.
#[derive(Default)]
pub(crate) struct Rebalances(Mutex<(RebalanceTimes, Option<Instant>)>);

impl Rebalances {
    /// A topology is installed with which entries move, or not.
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

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Entries that have made room for others on this member since the cache was opened; with a store, those whose values
    /// have.
    pub fn evictions(&self) -> u64 {
        self.opened.container.evictions()
    }

    /// Entries that this member has taken out because they had expired, since the cache was opened. While members listen, the
    /// primary takes them out for all owners, and only it counts them.
    pub fn expirations(&self) -> u64 {
        self.opened.container.expirations()
    }

    /// Entries on this member of which it is the primary owner, those included of which only the store has the value. All of a
    /// local or an invalidation cache. Looks at each segment.
    pub fn primary_len(&self) -> u64 {
        let container = &self.opened.container;
        if matches!(self.opened.config.mode, CacheMode::Local | CacheMode::Invalidation) {
            return container.len();
        }
        let owners = self.opened.topology.borrow().as_ref().map(|topology| topology.write_owners());
        let local = self.handler.address();
        owners.zip(local).map_or(0, |(owners, local)| {
            owners.primary_segments_of(&local).map(|segment| container.segment_len(segment)).sum()
        })
    }

    /// The rebalances of the cache, as this member sees them.
    pub fn rebalance_times(&self) -> RebalanceTimes {
        self.opened.rebalances.times(Instant::now())
    }
}

impl CacheManager {
    /// Operations of this member that wait for other members, those of all caches.
    pub fn operation_count(&self) -> usize {
        self.handler().with_node(|node: &mut Node, _| node.operation_count()).unwrap_or_default()
    }

    /// What the layers of the stack count: the layer, what it counts, and how much. None if the member is closed.
    pub async fn stack_counts(&self) -> Option<Vec<(&'static str, StackCount, u64)>> {
        self.channel().with_stack(|stack, _| stack.counts()).await
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
