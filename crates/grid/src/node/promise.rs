//! The duties of a member to its coordinator: to report its status, to promise a ballot, and to install topologies made under
//! that ballot.

use consort_group::Address;

use crate::command::{Body, CacheStatus, Status, ToCoordinator};
use crate::config::CacheId;
use crate::injected_bugs::InjectedBug;
use crate::node::Node;
use crate::replica::CacheReplica;
use crate::{Ballot, Topology};

impl Node {
    pub(crate) fn install(&mut self, from: &Address, ballot: Ballot, id: CacheId, topology: Topology) {
        if self.cx.coordinator.as_ref() != Some(from) {
            // Either the view that makes the sender coordinator is not here yet, or the sender does not know that it is no longer
            // coordinator. Only topologies of caches that are open here are kept, because the number of other caches is
            // unlimited.
            if self.caches.contains_key(&id) {
                self.early.insert(id, (from.clone(), ballot, topology));
            }
            return;
        }
        if self.cx.promised.as_ref() != Some(&ballot) && !self.cx.has(InjectedBug::PromiseForgotten) {
            // A topology from before this member's promise to another coordinator must not be installed after that promise. Or
            // the sender has not requested the status yet.
            return self.report_higher_ballot(from, &ballot);
        }
        if let Some(cache) = self.caches.get_mut(&id) {
            cache.install(&mut self.cx, topology);
        }
    }

    /// Returns whether the coordinator does not know this member's status, because the promised ballot is another coordinator's.
    pub(crate) fn is_unknown_to_coordinator(&self) -> bool {
        let by = self.cx.promised.as_ref().map(|promised| &promised.by);
        !self.cx.has(InjectedBug::PromiseForgotten)
            && by.is_some_and(|by| self.cx.coordinator.as_ref().is_some_and(|coordinator| coordinator != by))
            && self.caches.values().any(|cache| cache.shared.installed.is_some() && !cache.shared.is_local())
    }

    /// Makes a coordinator request the status again, if it has missed that this member had another coordinator meanwhile.
    pub(crate) fn look_for_coordinator(&mut self) {
        if self.is_unknown_to_coordinator()
            && let Some((coordinator, promised)) = self.cx.coordinator.clone().zip(self.cx.promised.clone())
        {
            let told = ToCoordinator::Outbid(promised);
            self.cx.send(&coordinator, CacheId(0), 0, Body::ToCoordinator(told));
        }
    }

    /// Reports the promised ballot to a coordinator with a lower ballot, so that the coordinator exceeds it.
    fn report_higher_ballot(&mut self, to: &Address, ballot: &Ballot) {
        if let Some(promised) = self.cx.promised.clone().filter(|promised| promised > ballot) {
            let told = ToCoordinator::Outbid(promised);
            self.cx.send(to, CacheId(0), 0, Body::ToCoordinator(told));
        }
    }

    /// Reports the status to the coordinator. From then on no topology made under another ballot is installed, so that this
    /// member is not ahead of its report.
    pub(crate) fn tell_status(&mut self, to: &Address, ballot: Ballot) {
        if self.cx.coordinator.as_ref() != Some(to) {
            self.asked = Some((to.clone(), ballot));
            return;
        }
        if ballot.by != *to {
            self.cx.counters.malformed += 1;
            return;
        }
        let is_less = self.cx.promised.as_ref().is_some_and(|promised| *promised > ballot);
        if is_less && !self.cx.has(InjectedBug::PromiseForgotten) {
            return self.report_higher_ballot(to, &ballot);
        }
        self.cx.promised = Some(ballot.clone());
        let status = |cache: &CacheReplica| CacheStatus {
            config: cache.shared.config.clone(),
            member: cache.shared.member.clone(),
            topology: cache.shared.topology().cloned(),
            frozen: cache.shared.frozen.as_ref().map(|frozen| frozen.topology.clone()),
            pulled: cache.transfer.pulled,
            is_leaving: cache.is_leaving,
            is_fresh: !self.cx.memberships.contains(&cache.shared.id) && cache.store.restored().is_none(),
            restored: cache.store.restored().filter(|_| cache.shared.installed.is_none()),
        };
        let caches = self.caches.values().filter(|cache| !cache.shared.is_local()).map(status).collect();
        let status = ToCoordinator::Status(Box::new(Status { ballot, caches }));
        self.cx.send(to, CacheId(0), 0, Body::ToCoordinator(status));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use consort_group::{Rng, Time};

    use super::*;
    use crate::{CacheConfig, Container, ContainerSettings};

    #[test]
    fn topologies_that_come_before_their_view_are_kept_of_open_caches_only() {
        let mut rng = Rng::new(1);
        let (local, other) = (Address::random(&mut rng), Address::random(&mut rng));
        let mut node = Node::new(local.clone());
        let config = CacheConfig { segments: 2, ..CacheConfig::new("open") };
        let settings = ContainerSettings { segment_count: 2, bound: None, is_backed: false, is_shared: true };
        let container = Arc::new(Container::new(&settings, 7));
        node.open(Time::ZERO, config.clone(), local.into(), container).expect("opened");
        let ballot = Ballot { number: 1, by: other.clone() };
        let ids = (0..1_000).map(CacheId).chain([config.id()]);
        for id in ids {
            node.install(&other, ballot.clone(), id, Topology::first(1, other.clone().into(), 2, 2));
        }
        assert_eq!(node.early.keys().collect::<Vec<_>>(), [&config.id()]);
    }
}
