//! Functions that the host runs outside the node.

use consort_group::Time;

use crate::config::CacheId;
use crate::node::Node;
use crate::replica::iterate::computations::{Computation, Computed, finish_computation};

impl Node {
    /// Makes a function run outside the node: the host calls [`Node::take_computation`] whenever
    /// [`Node::has_computations`] returns true.
    pub fn register_costly(&mut self, cache: CacheId, name: &str) {
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.iterations.costly.insert(name.into());
        }
    }

    /// Whether a step waits.
    pub fn has_computations(&self) -> bool {
        self.cx.computations.has_any()
    }

    /// Returns the next step.
    pub fn take_computation(&mut self, now: Time) -> Option<Computation> {
        self.cx.now = now;
        let taken = loop {
            let Some((key, fetch, loaded)) = self.cx.computations.take() else { break None };
            let Some(cache) = self.caches.get_mut(&key.0) else {
                self.cx.computations.end(&key);
                continue;
            };
            if let Some(computation) = cache.iterations.computation(
                &cache.shared,
                &mut cache.store,
                &mut self.cx,
                key,
                fetch,
                loaded,
            ) {
                break Some(computation);
            }
        };
        self.work();
        taken
    }

    /// Handles a step's result.
    pub fn finish_computation(&mut self, now: Time, computed: Computed) {
        self.cx.now = now;
        self.cx.computations.end(&computed.key);
        if let Some(cache) = self.caches.get_mut(&computed.key.0) {
            finish_computation(&cache.shared, &mut self.cx, computed);
        }
        self.work();
    }
}
