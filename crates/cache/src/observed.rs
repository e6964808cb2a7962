//! Figures for metrics. They add no work to an operation.

use std::time::Instant;

use consort_grid::{CacheMode, Node};
use consort_group::StackCount;

use crate::cache::Cache;
use crate::manager::CacheManager;
use crate::rebalances::RebalanceTimes;

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the entries evicted here since the opening; with a store, the values.
    pub fn evictions(&self) -> u64 {
        self.encoded.opened.container.statistics().evictions()
    }

    /// Returns the expired entries removed here since the opening. While members have listeners, only the primary removes and
    /// counts them.
    pub fn expirations(&self) -> u64 {
        self.encoded.opened.container.statistics().expirations()
    }

    /// Returns the entries whose primary this member is, also with values only in the store; in a local or
    /// invalidation cache all entries. Reads each segment.
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

    /// Returns the times of the cache's rebalances here.
    pub fn rebalance_times(&self) -> RebalanceTimes {
        self.encoded.opened.rebalances.times(Instant::now())
    }
}

impl CacheManager {
    /// Returns how many operations of this member, of all caches, wait for others.
    pub fn operation_count(&self) -> usize {
        self.handler().with_node(|node: &mut Node, _| node.stats().operation_count()).unwrap_or_default()
    }

    /// Returns the counters of the stack's layers; `None` if the member is closed.
    pub async fn stack_counts(&self) -> Option<Vec<(&'static str, StackCount, u64)>> {
        self.channel().with_stack(|stack, _| stack.counts()).await
    }
}
