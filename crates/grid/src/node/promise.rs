//! The duties of a member to its coordinator.

use std::collections::BTreeMap;

use consort_group::Address;

use super::Caches;
use crate::command::{Body, CacheStatus, Status, ToCoordinator};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::replica::CacheReplica;
use crate::{Ballot, Topology};

/// The messages of a coordinator whose view is not here yet.
#[derive(Default)]
pub(crate) struct EarlyMessages {
    topologies: BTreeMap<CacheId, (Address, Ballot, Topology)>,
    status_request: Option<(Address, Ballot)>,
}

impl EarlyMessages {
    pub(super) fn handle_view(&mut self, cx: &mut Cx, caches: &mut Caches) {
        if let Some((from, ballot)) = self.status_request.take() {
            self.handle_status_request(cx, caches, &from, ballot);
        }
        for (cache, (from, ballot, topology)) in std::mem::take(&mut self.topologies) {
            self.handle_install(cx, caches, &from, ballot, cache, topology);
        }
    }

    pub(super) fn handle_install(
        &mut self,
        cx: &mut Cx,
        caches: &mut Caches,
        from: &Address,
        ballot: Ballot,
        id: CacheId,
        topology: Topology,
    ) {
        if cx.coordinator.as_ref() != Some(from) {
            // Either the view that makes the sender coordinator is not here yet, or the sender does not know that it is no longer
            // coordinator. Only topologies of caches that are open here are kept, because the number of other caches is
            // unlimited.
            if caches.contains_key(&id) {
                self.topologies.insert(id, (from.clone(), ballot, topology));
            }
            return;
        }
        if cx.promised.as_ref() != Some(&ballot) && !cx.has(InjectedBug::PromiseForgotten) {
            // A topology from before this member's promise to another coordinator must not be installed after that promise. Or
            // the sender has not requested the status yet.
            return report_higher_ballot(cx, from, &ballot);
        }
        if let Some(cache) = caches.get_mut(&id) {
            cache.install(cx, topology);
        }
    }

    /// From this report on no topology of another ballot is installed, so that this member is not ahead of
    /// its report.
    pub(super) fn handle_status_request(
        &mut self,
        cx: &mut Cx,
        caches: &Caches,
        from: &Address,
        ballot: Ballot,
    ) {
        if cx.coordinator.as_ref() != Some(from) {
            self.status_request = Some((from.clone(), ballot));
            return;
        }
        if ballot.by != *from {
            cx.counters.malformed += 1;
            return;
        }
        let is_less = cx.promised.as_ref().is_some_and(|promised| *promised > ballot);
        if is_less && !cx.has(InjectedBug::PromiseForgotten) {
            return report_higher_ballot(cx, from, &ballot);
        }
        cx.promised = Some(ballot.clone());
        let status = |cache: &CacheReplica| CacheStatus {
            config: cache.shared.config.clone(),
            member: cache.shared.member.clone(),
            topology: cache.shared.topology().cloned(),
            frozen: cache.shared.frozen.as_ref().map(|frozen| frozen.topology.clone()),
            pulled: cache.transfer.pulled,
            is_leaving: cache.is_leaving,
            is_fresh: !cx.memberships.contains(&cache.shared.id) && cache.store.restored().is_none(),
            restored: cache.store.restored().filter(|_| cache.shared.installed.is_none()),
        };
        let caches = caches.values().filter(|cache| !cache.shared.is_local()).map(status).collect();
        let status = ToCoordinator::Status(Box::new(Status { ballot, caches }));
        cx.send(from, CacheId(0), 0, Body::ToCoordinator(status));
    }
}

/// The coordinator does not know the status if the promised ballot is another's.
pub(super) fn is_unknown_to_coordinator(cx: &Cx, caches: &Caches) -> bool {
    let by = cx.promised.as_ref().map(|promised| &promised.by);
    !cx.has(InjectedBug::PromiseForgotten)
        && by.is_some_and(|by| cx.coordinator.as_ref().is_some_and(|coordinator| coordinator != by))
        && caches.values().any(|cache| cache.shared.installed.is_some() && !cache.shared.is_local())
}

/// A coordinator may have missed that this member had another one meanwhile.
pub(super) fn look_for_coordinator(cx: &mut Cx, caches: &Caches) {
    if is_unknown_to_coordinator(cx, caches)
        && let Some((coordinator, promised)) = cx.coordinator.clone().zip(cx.promised.clone())
    {
        let told = ToCoordinator::Outbid(promised);
        cx.send(&coordinator, CacheId(0), 0, Body::ToCoordinator(told));
    }
}

/// A coordinator with a lower ballot must exceed the promised one.
fn report_higher_ballot(cx: &mut Cx, to: &Address, ballot: &Ballot) {
    if let Some(promised) = cx.promised.clone().filter(|promised| promised > ballot) {
        let told = ToCoordinator::Outbid(promised);
        cx.send(to, CacheId(0), 0, Body::ToCoordinator(told));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use consort_group::{Rng, Time};

    use super::*;
    use crate::{CacheConfig, Container, ContainerSettings, Node};

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
            let topology = Topology::first(1, other.clone().into(), 2, 2);
            node.early.handle_install(&mut node.cx, &mut node.caches, &other, ballot.clone(), id, topology);
        }
        assert_eq!(node.early.topologies.keys().collect::<Vec<_>>(), [&config.id()]);
    }
}
