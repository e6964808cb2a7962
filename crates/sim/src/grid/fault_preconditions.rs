//! Guards against faults by which a grid loses data by right, and the check whether a grid has settled.

use consort_grid::{Availability, CacheMode, CapacityFactor, PartitionHandling, Phase, Topology};
use consort_group::Address;

use crate::checks;
use crate::node::Node;
use crate::world::World;

impl World {
    fn members(&self) -> impl Iterator<Item = &super::Member> {
        self.nodes.iter().filter(|node| node.is_alive()).filter_map(|node| node.member.as_deref())
    }

    /// Returns the number of members with a positive capacity factor that stay.
    fn owners(&self) -> usize {
        let mode = self.grid.as_ref().map(|grid| grid.config.mode);
        let takes = |member: &&super::Member| {
            !member.is_leaving
                && (member.capacity != CapacityFactor::ZERO || mode == Some(CacheMode::Invalidation))
        };
        self.members().filter(takes).count()
    }

    fn is_whole(&self) -> bool {
        self.network.cuts.is_empty() && !self.nodes.iter().any(|node| node.is_alive() && node.is_paused)
    }

    /// Returns whether a member may crash: every segment has all its owners, so one may be lost; and more than half of the
    /// members are left.
    pub(crate) fn may_crash(&self) -> bool {
        let Some(grid) = &self.grid else { return true };
        grid.config.mode != CacheMode::Distributed { owners: 1 }
            && self.members().count() > 2
            && self.owners() > 2
            && self.is_whole()
            && self.is_settled()
    }

    /// Returns whether members may be parted from each other. A member that does not know the cache would begin one of its
    /// own. A member that leaves cannot tell an unreachable member from one that has left, so the last ones would take the
    /// cache with them.
    pub(crate) fn may_part(&self) -> bool {
        self.grid.is_none() || self.members().all(|member| member.knows() && !member.is_leaving)
    }

    /// Returns whether a member may leave: not the last one, nor one that takes itself for the last.
    pub(crate) fn may_leave(&self, node: usize) -> bool {
        if self.grid.is_none() {
            return true;
        }
        let is_usable = self.nodes[node].member.as_ref().is_some_and(|member| member.is_usable());
        // Partitions may not have merged again: a member that leaves takes its partition's writes along.
        let merges = self
            .grid
            .as_ref()
            .is_some_and(|grid| grid.config.partitions == PartitionHandling::AllowReadWrites);
        // A member that leaves before a crash is known takes a vote along that the remaining members would need.
        let alive: Vec<&Address> =
            self.nodes.iter().filter(|node| node.is_alive()).map(|node| &node.address).collect();
        let topologies = self.members().filter_map(|member| member.topology());
        let is_nobody_lost = topologies.flat_map(|one| one.addresses()).all(|one| alive.contains(&one));
        // If a member has not seen the remaining ones, none of them gets its entries.
        let stays = |address: &Address| {
            let mut others =
                self.nodes.iter().enumerate().filter(|(other, one)| *other != node && one.is_alive());
            others.any(|(_, one)| {
                one.address == *address && one.member.as_ref().is_some_and(|member| !member.is_leaving)
            })
        };
        let own = self.nodes[node].member.as_ref().and_then(|member| member.topology());
        let is_succeeded = own.is_some_and(|topology| topology.addresses().any(stays));
        is_usable
            && is_succeeded
            && is_nobody_lost
            && (!merges || self.is_settled())
            && self.is_whole()
            && self.members().all(super::Member::knows)
            && self.owners() > 1
    }

    /// Returns whether a member may start: no member that has the cache is cut off. A member that starts beside a local cache
    /// has another one.
    pub(crate) fn may_start(&self) -> bool {
        let Some(grid) = &self.grid else { return true };
        grid.config.mode != CacheMode::Local && self.is_whole()
    }

    /// Returns whether all live members have one view, and one stable topology of exactly themselves with all owners.
    pub(crate) fn is_settled(&self) -> bool {
        let alive: Vec<&Node> = self.nodes.iter().filter(|node| node.is_alive()).collect();
        let topologies: Vec<_> = self.members().map(|member| member.topology()).collect();
        let Some(Some(first)) = topologies.first() else { return alive.is_empty() };
        checks::is_one_view(self)
            && first.members.len() == alive.len()
            && first.phase == Phase::Stable
            && first.availability == Availability::Available
            && first.merging.is_empty()
            && self.has_all_owners(first)
            && first.quorum.len() == alive.len()
            && first.quorum_to_be.is_none()
            && alive.iter().all(|node| first.contains(&node.address))
            && topologies.iter().all(|other| *other == Some(first))
            && !self.members().any(|member| member.is_leaving)
    }

    /// Returns whether every segment has all its owners, or as many as there are members.
    fn has_all_owners(&self, topology: &Topology) -> bool {
        let Some(config) = self.grid.as_ref().map(|grid| &grid.config) else { return true };
        let takers =
            topology.members.iter().filter(|one| one.member.capacity != CapacityFactor::ZERO).count();
        let wanted = usize::from(config.owner_count()).min(takers);
        config.mode == CacheMode::Invalidation
            || topology.current.segments().all(|segment| topology.current.owners(segment).len() >= wanted)
    }

    /// Formats the state of each member's cache for a report.
    pub(crate) fn grid_state(&self) -> String {
        let mut text = String::new();
        for node in self.nodes.iter().filter(|node| node.is_alive()) {
            let Some(member) = &node.member else { continue };
            let topology =
                member.topology().map(|t| (t.id, t.phase, t.members.len(), t.away().len(), t.rebalance));
            text += &format!(
                "\n  {} open={} leaving={} left={} view={:?} topology={topology:?} {:?} {:?}: {}",
                node.name,
                member.is_open,
                member.is_leaving,
                member.is_left,
                node.view().map(|view| (view.id().id, view.len())),
                member.node.progress(member.cache),
                member.node.load(member.cache),
                member.node.describe(),
            );
        }
        text
    }
}
