//! The owners of a cache's segments, counted for operators.

use consort_cache::{Address, Availability, CapacityFactor, Phase, Topology};
use serde_json::{Value, json};

/// Infinispan's names; it has none for a cold start.
pub(crate) const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Stable => "NO_REBALANCE",
        Phase::ReadOldWriteAll => "READ_OLD_WRITE_ALL",
        Phase::ReadNewWriteAll => "READ_NEW_WRITE_ALL",
        Phase::Restoring => "RESTORING",
    }
}

/// Infinispan's names.
pub(crate) fn availability_name(topology: &Topology) -> &'static str {
    match topology.availability {
        Availability::Available => "AVAILABLE",
        Availability::Degraded { .. } => "DEGRADED_MODE",
    }
}

/// Entries that only these owners had are lost when the cache becomes available.
pub(crate) fn segments_without_owner(topology: &Topology) -> usize {
    let (owners, away) = (topology.read_owners(), topology.away());
    let is_lost = |segment| owners.owners(segment).all(|owner| away.contains(owner));
    owners.segments().filter(|segment| is_lost(*segment)).count()
}

/// Segments with fewer reachable owners than the members could have.
fn segments_with_fewer_owners(topology: &Topology) -> usize {
    let (owners, away) = (topology.read_owners(), topology.away());
    let can_own = topology.members.iter().filter(|one| one.member.capacity != CapacityFactor::ZERO).count();
    let wanted = can_own.min(usize::from(owners.owner_count()));
    let present = |segment| owners.owners(segment).filter(|owner| !away.contains(owner)).count();
    owners.segments().filter(|segment| present(*segment) < wanted).count()
}

/// Segments whose owners differ after the rebalance in progress.
pub(crate) fn segments_to_move(topology: &Topology) -> usize {
    let Some(pending) = &topology.pending else { return 0 };
    let current = &topology.current;
    let has_moved = |segment| {
        let is_new = |owner: &Address| !current.owners(segment).any(|other| other == owner);
        pending.owners(segment).any(is_new) || pending.owners(segment).len() != current.owners(segment).len()
    };
    pending.segments().filter(|segment| has_moved(*segment)).count()
}

pub(crate) fn to_json(topology: &Topology, name_of: impl Fn(&Address) -> String) -> Value {
    let (owners, away) = (topology.read_owners(), topology.away());
    let member = |address: &Address| {
        let owned = owners.segments_of(address).count();
        let is_primary = |segment| owners.primary(segment) == Some(address);
        let primary = owners.segments().filter(|segment| is_primary(*segment)).count();
        json!({
            "name": name_of(address),
            "primary": primary,
            "backup": owned - primary,
            "reachable": !away.contains(address),
        })
    };
    json!({
        "segments": owners.segment_count(),
        "owners": owners.owner_count(),
        "topology": topology.id,
        "phase": phase_name(topology.phase),
        "availability": availability_name(topology),
        "without_owner": segments_without_owner(topology),
        "with_fewer_owners": segments_with_fewer_owners(topology),
        "members": topology.addresses().map(member).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 1, least: n })
    }

    /// A cache with two owners, the second of which joins.
    fn joined() -> Topology {
        let first = Topology::first(1, member(1).into(), 2, 12);
        let target = first.current.rebalanced(vec![member(1).into(), member(2).into()]);
        first.succeeded(2, |next| {
            let mut second = next.members[0].clone();
            second.member = member(2).into();
            next.members = next.members.iter().cloned().chain([second]).collect();
            next.phase = Phase::ReadOldWriteAll;
            next.pending = Some(target);
        })
    }

    #[test]
    fn owners_are_counted_per_member() {
        let moving = joined();
        let shown = to_json(&moving, |address| format!("{}", address == &member(1)));
        assert_eq!(
            shown["members"][0],
            json!({"name": "true", "primary": 12, "backup": 0, "reachable": true})
        );
        assert_eq!(shown["members"][1]["primary"], 0);
        assert_eq!((&shown["with_fewer_owners"], &shown["without_owner"]), (&12.into(), &0.into()));
        assert_eq!((&shown["phase"], segments_to_move(&moving)), (&"READ_OLD_WRITE_ALL".into(), 12));
        let moved = moving.succeeded(3, |next| {
            next.phase = Phase::Stable;
            next.current = next.pending.take().unwrap();
        });
        let shown = to_json(&moved, |_| String::new());
        let primaries: Vec<&Value> = (0..2).map(|at| &shown["members"][at]["primary"]).collect();
        assert_eq!(primaries, [6, 6]);
        assert_eq!((&shown["members"][0]["backup"], &shown["with_fewer_owners"]), (&6.into(), &0.into()));
        assert_eq!(segments_to_move(&moved), 0);
    }

    #[test]
    fn segments_of_unreachable_owners_are_counted() {
        let alone = Topology::first(1, member(1).into(), 2, 12);
        let away = [member(1)];
        let degraded =
            alone.succeeded(2, |next| next.availability = Availability::Degraded { away: away.into() });
        let shown = to_json(&degraded, |_| String::new());
        assert_eq!((&shown["without_owner"], &shown["with_fewer_owners"]), (&12.into(), &12.into()));
        assert_eq!(shown["availability"], "DEGRADED_MODE");
        assert_eq!(shown["members"][0]["reachable"], false);
    }
}
