//! The figures of a member and its caches, for metrics. They add no work to the path of an operation.

use std::time::Instant;

use consort_grid::{CacheMode, Node};
use consort_group::StackCount;

use crate::cache::Cache;
use crate::manager::CacheManager;
use crate::rebalances::RebalanceTimes;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the number of entries evicted on this member since the cache was opened; with a store, of values
    /// evicted.
    pub fn evictions(&self) -> u64 {
        self.encoded.opened.container.statistics().evictions()
    }

    /// Returns the number of expired entries that this member has removed since the cache was opened. While members
    /// have listeners, the primary removes them for all owners, and only the primary counts them.
    pub fn expirations(&self) -> u64 {
        self.encoded.opened.container.statistics().expirations()
    }

    /// Returns the number of entries on this member whose primary it is, including those with values only in the
    /// store. In a local or an invalidation cache these are all entries. This reads each segment.
    pub fn primary_len(&self) -> u64 {
        let container = &self.encoded.opened.container;
        if matches!(self.encoded.opened.config.mode, CacheMode::Local | CacheMode::Invalidation) {
            return container.len();
        }
        let owners = self.encoded.opened.topology.borrow().as_ref().map(|topology| topology.write_owners());
        let local = self.encoded.handler.address();
        owners.zip(local).map_or(0, |(owners, local)| {
            owners.primary_segments_of(&local).map(|segment| container.segment_len(segment)).sum()
        })
    }

    /// Returns the times of the cache's rebalances on this member.
    pub fn rebalance_times(&self) -> RebalanceTimes {
        self.encoded.opened.rebalances.times(Instant::now())
    }
}

impl CacheManager {
    /// Returns the number of operations of this member that wait for other members, of all caches.
    pub fn operation_count(&self) -> usize {
        self.handler().with_node(|node: &mut Node, _| node.stats().operation_count()).unwrap_or_default()
    }

    /// Returns the counters of the stack's layers: layer, counter, and value. None if the member is closed.
    pub async fn stack_counts(&self) -> Option<Vec<(&'static str, StackCount, u64)>> {
        self.channel().with_stack(|stack, _| stack.counts()).await
    }
}
