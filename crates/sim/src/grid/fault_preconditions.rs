//! Guards against faults by which a grid loses data by right.

use consort_grid::{Availability, CacheMode, CapacityFactor, PartitionHandling, Phase, Topology};
use consort_group::Address;

use super::GridWorld;
use super::member::{Member, alive};
use crate::checks;

fn members(world: &GridWorld) -> impl Iterator<Item = &Member> {
    alive(world).map(|(_, member)| member)
}

fn owners(world: &GridWorld) -> usize {
    let mode = world.app.config.mode;
    let takes = |member: &&Member| {
        !member.is_leaving && (member.capacity != CapacityFactor::ZERO || mode == CacheMode::Invalidation)
    };
    members(world).filter(takes).count()
}

fn is_whole(world: &GridWorld) -> bool {
    world.network.cuts.is_empty() && !world.nodes.iter().any(|node| node.is_alive() && node.is_paused)
}

/// Every segment has all its owners, and more than half of the members are left.
pub(super) fn may_crash(world: &GridWorld) -> bool {
    world.app.config.mode != CacheMode::Distributed { owners: 1 }
        && members(world).count() > 2
        && owners(world) > 2
        && is_whole(world)
        && is_settled(world)
}

/// A member that does not know the cache would begin its own. A leaving member cannot tell an unreachable
/// member from one that has left, so the last ones would take the cache with them.
pub(super) fn may_part(world: &GridWorld) -> bool {
    members(world).all(|member| member.knows() && !member.is_leaving)
}

/// The last member may not leave, nor one that takes itself for the last.
pub(super) fn may_leave(world: &GridWorld, node: usize) -> bool {
    // Partitions may not have merged again: a member that leaves takes its partition's writes along.
    let merges = world.app.config.partitions == PartitionHandling::AllowReadWrites;
    // A member that leaves before a crash is known takes a vote along that the remaining members would need.
    let addresses: Vec<&Address> = alive(world).map(|(node, _)| &node.address).collect();
    let topologies = members(world).filter_map(|member| member.topology());
    let is_nobody_lost = topologies.flat_map(|one| one.addresses()).all(|one| addresses.contains(&one));
    // If a member has not seen the remaining ones, none of them gets its entries.
    let own = &world.app.members[node];
    let stays = |address: &Address| {
        let mut others = alive(world).filter(|(_, member)| !std::ptr::eq(*member, own));
        others.any(|(one, member)| one.address == *address && !member.is_leaving)
    };
    let is_succeeded = own.topology().is_some_and(|topology| topology.addresses().any(stays));
    own.is_usable()
        && is_succeeded
        && is_nobody_lost
        && (!merges || is_settled(world))
        && is_whole(world)
        && members(world).all(Member::knows)
        && owners(world) > 1
}

/// No member with the cache is cut off. A member that starts beside a local cache has another one.
pub(super) fn may_start(world: &GridWorld) -> bool {
    world.app.config.mode != CacheMode::Local && is_whole(world)
}

pub(super) fn is_settled(world: &GridWorld) -> bool {
    let count = members(world).count();
    let topologies: Vec<_> = members(world).map(Member::topology).collect();
    let Some(Some(first)) = topologies.first() else { return count == 0 };
    checks::is_one_view(&world.nodes)
        && first.members.len() == count
        && first.phase == Phase::Stable
        && first.availability == Availability::Available
        && first.merging.is_empty()
        && has_all_owners(world, first)
        && first.quorum.len() == count
        && first.quorum_to_be.is_none()
        && alive(world).all(|(node, _)| first.contains(&node.address))
        && topologies.iter().all(|other| *other == Some(first))
        && !members(world).any(|member| member.is_leaving)
}

/// A small cluster has as many owners as members.
fn has_all_owners(world: &GridWorld, topology: &Topology) -> bool {
    let config = &world.app.config;
    let takers = topology.members.iter().filter(|one| one.member.capacity != CapacityFactor::ZERO).count();
    let wanted = usize::from(config.owner_count()).min(takers);
    config.mode == CacheMode::Invalidation
        || topology.current.segments().all(|segment| topology.current.owners(segment).len() >= wanted)
}

pub(super) fn grid_state(world: &GridWorld) -> String {
    let mut text = String::new();
    for (node, member) in alive(world) {
        let topology =
            member.topology().map(|t| (t.id, t.phase, t.members.len(), t.away().len(), t.rebalance));
        text += &format!(
            "\n  {} open={} leaving={} left={} view={:?} topology={topology:?} {:?} {:?}: {}",
            node.name,
            member.is_open,
            member.is_leaving,
            member.is_left,
            node.view().map(|view| (view.id().id, view.len())),
            member.node.stats().progress(member.cache),
            member.node.stats().load(member.cache),
            member.node.stats().describe(),
        );
    }
    text
}
