//! A cold start: members return with the entries of their stores (`docs/design/2026-11-grid.md`, Stores). The
//! cache continues once all members of the newest persisted topology are back, or is made available without
//! the missing ones.
//!
//! All must return, because a member may have stopped before the others continued to write. The coordinator
//! does not wait for a member that this topology has just added and that was to receive some or none of the
//! entries. If it has persisted the topology, it returns as the member that it was; if not, it has never
//! confirmed the topology, so nothing newer exists. Writes under the topology after it are also applied by
//! the members read in this one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use consort_group::{Address, View};

use super::coordinated_cache::{CoordinatedCache, refuse_differing};
use crate::command::Restored;
use crate::cx::Cx;
use crate::topology::{Availability, Membership, Phase, Topology};
use crate::{Ballot, CacheConfig, CacheMember, PartitionHandling};

pub(super) struct ColdStart {
    config: CacheConfig,
    newest: Topology,
    id: u32,
    here: BTreeMap<Address, (CacheMember, Option<Restored>)>,
}

impl ColdStart {
    pub(super) fn begin(config: CacheConfig, restored: &Restored) -> Self {
        let newest = restored.topology.clone();
        Self { config, id: newest.id, newest, here: BTreeMap::new() }
    }

    /// If a cold start has lost members that have all returned with their stores. The remaining members stay
    /// as they are.
    pub(super) fn begin_again(cx: &mut Cx, led: &CoordinatedCache) -> Option<Self> {
        let degraded = led.topology();
        if degraded.phase != Phase::Restoring || degraded.away().is_empty() {
            return None;
        }
        let back: Vec<&Address> =
            led.returning().filter_map(|(_, restored)| place_of(degraded, restored?)).collect();
        if !degraded.away().iter().all(|away| back.contains(&away)) {
            return None;
        }
        let left = degraded.members.iter().map(|one| &one.member);
        let left = left.filter(|member| !degraded.away().contains(&member.address));
        let as_is = |member: &CacheMember| {
            let formerly = member.address.clone();
            let restored = Restored { formerly: formerly.clone(), topology: degraded.clone() };
            (formerly, (member.clone(), Some(restored)))
        };
        let (config, here) = (led.config().clone(), left.map(as_is).collect());
        let mut restoring = Self { config, id: degraded.id, newest: degraded.clone(), here };
        for (member, restored) in led.returning() {
            restoring.handle_join(cx, led.config(), member.clone(), restored.cloned());
        }
        Some(restoring)
    }

    pub(super) fn handle_join(
        &mut self,
        cx: &mut Cx,
        config: &CacheConfig,
        member: CacheMember,
        restored: Option<Restored>,
    ) {
        if refuse_differing(cx, &self.config, config, &member) {
            return;
        }
        if let Some(restored) = &restored {
            self.id = self.id.max(restored.topology.id);
            if rank(&restored.topology) > rank(&self.newest) {
                self.newest = restored.topology.clone();
            }
        }
        self.here.insert(member.address.clone(), (member, restored));
    }

    pub(super) fn ballot(&self) -> u64 {
        self.newest.ballot.number
    }

    pub(super) fn keep(&mut self, view: &View) {
        self.here.retain(|member, _| view.contains(member));
    }

    pub(super) fn remove(&mut self, member: &Address) {
        self.here.remove(member);
    }

    pub(super) fn is_over(&self) -> bool {
        !self.here.values().any(|(_, restored)| restored.is_some())
    }

    /// The keys are the addresses of the last incarnation.
    fn returned_members(&self) -> BTreeMap<Address, CacheMember> {
        self.places().map(|(place, member, _)| (place.clone(), member.clone())).collect()
    }

    fn places(&self) -> impl Iterator<Item = (&Address, &CacheMember, &Restored)> {
        self.here.values().filter_map(|(member, restored)| {
            let restored = restored.as_ref()?;
            Some((place_of(&self.newest, restored)?, member, restored))
        })
    }

    /// The addresses in the stores of the members, by their places. Until a member has persisted the next topology, it would
    /// return with this address. That of a member that has stayed is not known: it has its own address, or that of its former
    /// incarnation.
    fn stored_addresses(&self) -> BTreeMap<Address, Option<Address>> {
        let stored = |(place, member, restored): (&Address, &CacheMember, &Restored)| {
            let has_stayed = member.address == *place;
            let former = self.newest.membership(place).and_then(|one| one.formerly.clone());
            (place.clone(), if has_stayed { former } else { Some(restored.formerly.clone()) })
        };
        self.places().map(stored).collect()
    }

    pub(super) fn missing(&self) -> Vec<Address> {
        let back = self.returned_members();
        let newest = &self.newest;
        let is_fresh = |member: &Address| {
            let since = newest.membership(member).map(|membership| membership.since);
            let is_read = newest.read_owners().segments_of(member).next().is_some();
            since == Some(newest.id) && newest.merging.is_empty() && !is_read
        };
        let stays = |member: &&Address| !newest.forgone.contains(member) && !is_fresh(member);
        self.newest.addresses().filter(stays).filter(|member| !back.contains_key(*member)).cloned().collect()
    }

    /// Present members that have not returned join the cache.
    pub(super) fn finish(self, cx: &mut Cx, view: &View) -> CoordinatedCache {
        let (back, mut stored) = (self.returned_members(), self.stored_addresses());
        let id = self.id + 1;
        let current = self.newest.read_owners().without(|member| !back.contains_key(member)).renamed(&back);
        let members: Arc<[Membership]> = self
            .newest
            .members
            .iter()
            .filter_map(|one| {
                let member = back.get(&one.member.address)?.clone();
                let formerly = stored.remove(&one.member.address).flatten();
                Some(Membership { formerly, ..Membership::new(member, one.since) })
            })
            .collect();
        let epochs: Arc<[u32]> = vec![id; self.config.segments.into()].into();
        let mut topology = Topology {
            id,
            phase: Phase::Restoring,
            quorum_to_be: None,
            forgone: Arc::from([]),
            ballot: cx.leads.clone(),
            quorum: members.iter().map(|one| one.member.address.clone()).collect(),
            members,
            current,
            pending: None,
            rebalance: id,
            epochs: epochs.clone(),
            primary_terms: epochs,
            availability: Availability::Available,
            available: id,
            origin: self.newest.origin.clone(),
            lineages: self.newest.lineages.clone(),
            split_points: self.newest.split_points.clone(),
            merged: self.newest.merged.clone(),
            merging: Arc::from([]),
        };
        if self.config.partitions == PartitionHandling::AllowReadWrites {
            topology.begin_lineage(&cx.local);
        }
        let mut led = CoordinatedCache::resume(self.config, topology);
        led.present = view.members().iter().cloned().collect();
        let taken: BTreeSet<&Address> = back.values().map(|member| &member.address).collect();
        let others: Vec<_> =
            self.here.into_values().filter(|(member, _)| !taken.contains(&member.address)).collect();
        for (member, restored) in others {
            let config = led.config().clone();
            led.handle_late(cx, &config, member, restored.as_ref());
        }
        led.publish(cx);
        led
    }
}

fn place_of<'a>(topology: &'a Topology, restored: &Restored) -> Option<&'a Address> {
    let is_it = |one: &&Membership| {
        one.member.address == restored.formerly || one.formerly.as_ref() == Some(&restored.formerly)
    };
    let mut members = topology.members.iter().filter(|_| restored.topology.origin == topology.origin);
    members.find(is_it).map(|one| &one.member.address)
}

/// The newer topology belongs to the history that continued last with enough members.
fn rank(topology: &Topology) -> (&Ballot, u32, u32) {
    (&topology.ballot, topology.available, topology.id)
}
