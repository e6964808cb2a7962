//! The figures of a member and its caches, for metrics. They add no work to the path of an operation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_grid::{CacheMode, Node};
use consort_group::StackCount;

use crate::cache::Cache;
use crate::manager::CacheManager;

/// The rebalances of a cache on this member: each from the topology with which a state transfer begins until the
/// topology with which it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RebalanceTimes {
    /// Number of rebalances that have ended since the cache was opened here.
    pub ended: u64,
    /// Total time of these.
    pub total: Duration,
    /// Time of the last of them.
    pub last: Option<Duration>,
    /// Time since the beginning of the current rebalance.
    pub running: Option<Duration>,
}

/// The times, with the beginning of the current rebalance.
#[derive(Default)]
pub(crate) struct Rebalances(Mutex<(RebalanceTimes, Option<Instant>)>);

impl Rebalances {
    /// Records a topology, and whether a rebalance is in progress in it.
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
    /// Returns the number of entries evicted on this member since the cache was opened; with a store, of values
    /// evicted.
    pub fn evictions(&self) -> u64 {
        self.opened.container.evictions()
    }

    /// Returns the number of expired entries that this member has removed since the cache was opened. While members
    /// have listeners, the primary removes them for all owners, and only the primary counts them.
    pub fn expirations(&self) -> u64 {
        self.opened.container.expirations()
    }

    /// Returns the number of entries on this member whose primary it is, including those with values only in the
    /// store. In a local or an invalidation cache these are all entries. This reads each segment.
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

    /// Returns the times of the cache's rebalances on this member.
    pub fn rebalance_times(&self) -> RebalanceTimes {
        self.opened.rebalances.times(Instant::now())
    }
}

impl CacheManager {
    /// Returns the number of operations of this member that wait for other members, of all caches.
    pub fn operation_count(&self) -> usize {
        self.handler().with_node(|node: &mut Node, _| node.operation_count()).unwrap_or_default()
    }

    /// Returns the counters of the stack's layers: layer, counter, and value. None if the member is closed.
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
