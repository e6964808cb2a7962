//! The end of a cache whose members all leave, because the cluster stops.

use std::sync::Arc;

use super::coordinated_cache::CoordinatedCache;
use crate::command::Body;
use crate::cx::Cx;

impl CoordinatedCache {
    /// Whether the cluster is about to stop, and all members within reach have asked to leave, so that none writes any more.
    pub(super) fn is_stopped(&self, cx: &Cx) -> bool {
        let mut within_reach =
            self.topology.addresses().filter(|member| self.present.contains(member)).peekable();
        cx.is_cluster_stopping
            && self.joining.is_empty()
            && within_reach.peek().is_some()
            && within_reach.all(|member| self.leaving.contains(member))
    }

    /// The stores of the members keep their entries and the last topology.
    pub(super) fn end(&mut self, cx: &mut Cx) {
        let members = std::mem::take(&mut self.leaving);
        for member in members {
            cx.send(&member, self.config().id(), 0, Body::Left);
        }
        self.topology.members = Arc::from([]);
    }
}
