use std::collections::BTreeSet;

use consort_grid::{Availability, CacheMode, PartitionHandling, Topology};

use super::GridWorld;

/// Whether other members may write a key without this reader's knowledge: a newer topology is without it, or
/// has taken it in anew. A member that knows that writers are unreachable, and must not read then, is not
/// excused.
pub(super) fn is_left_out(world: &GridWorld, node: usize, key: &[u8]) -> bool {
    let Some(own) = world.app.members[node].topology() else { return false };
    let writers = own.write_owners();
    let refuses = world.app.config.partitions == PartitionHandling::DenyReadWrites
        && writers.owners(writers.segment_of(key)).any(|owner| own.away().contains(owner));
    !refuses && does_not_know(world, node)
}

fn does_not_know(world: &GridWorld, node: usize) -> bool {
    let Some(own) = world.app.members[node].topology() else { return false };
    let address = &world.nodes[node].address;
    let is_degraded = own.availability != Availability::Available;
    let elected = world.app.elected.as_ref().filter(|elected| elected.ballot > own.ballot);
    let is_taken_in = |elected: &Topology| elected.membership(address).is_some_and(|one| one.since <= own.id);
    if elected.is_some_and(|elected| !is_taken_in(elected)) {
        return true;
    }
    world.app.newest.iter().any(|newest| match newest.membership(address) {
        // Two topologies have one id if the member's own coordinator and another one, which do not know of each other,
        // went on from the same topology. The member also does not know if it has counted on alone since its cache is
        // degraded.
        None => newest.id >= own.id || newest.available > own.available || is_degraded,
        Some(membership) => membership.since > own.id,
    })
}

pub(super) fn is_by_itself(world: &GridWorld, node: usize) -> bool {
    let Some(own) = world.app.members[node].topology() else { return false };
    world.app.newest.iter().any(|newest| newest.origin != own.origin)
}

pub(super) fn readers(world: &GridWorld, node: usize, key: &[u8]) -> BTreeSet<usize> {
    let topology = world.app.members[node].topology();
    let own = &world.nodes[node].address;
    let is_owner =
        |topology: &&Topology| topology.read_owners().members().iter().any(|one| one.address == *own);
    // If every member has its own entries, no other member is asked.
    if world.app.config.mode == CacheMode::Invalidation && topology.as_ref().is_some_and(is_owner) {
        return BTreeSet::from([node]);
    }
    let owners = topology.into_iter().flat_map(|topology| {
        let owners = topology.read_owners();
        owners.owners(owners.segment_of(key))
    });
    let indices = owners.filter_map(|owner| world.app.indices.get(owner).copied());
    indices.chain([node]).collect()
}

pub(super) fn iteration_sources(world: &GridWorld, node: usize) -> BTreeSet<usize> {
    let topology = world.app.members[node].topology();
    let owners = topology.into_iter().flat_map(|topology| topology.read_owners().members());
    owners.filter_map(|owner| world.app.indices.get(&owner.address).copied()).chain([node]).collect()
}

pub(super) fn note_left_out(world: &mut GridWorld) {
    let is_left_out: Vec<bool> = (0..world.nodes.len()).map(|node| does_not_know(world, node)).collect();
    let (now, grid) = (world.now, &mut world.app);
    for (node, is_left_out) in is_left_out.into_iter().enumerate() {
        if is_left_out {
            grid.left_out.entry(node).or_insert_with(|| {
                grid.lost.push((node, now));
                now
            });
        } else {
            grid.left_out.remove(&node);
        }
    }
}
