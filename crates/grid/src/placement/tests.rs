//! The guarantees of the placement, for random members.

use std::collections::BTreeSet;

use consort_group::{Address, Uuid};
use proptest::prelude::*;

use crate::{CacheMember, CapacityFactor, ConsistentHash, Location, SEGMENT_COUNT, Segment};

fn address(n: u64) -> Address {
    Address::Uuid(Uuid { most: n, least: n })
}

fn members(numbers: impl IntoIterator<Item = u64>) -> Vec<CacheMember> {
    numbers.into_iter().map(|n| address(n).into()).collect()
}

fn at(n: u64, site: &str, rack: &str, machine: &str) -> CacheMember {
    let location =
        Location { site: Some(site.into()), rack: Some(rack.into()), machine: Some(machine.into()) };
    CacheMember { location, ..address(n).into() }
}

fn copies(hash: &ConsistentHash, member: &CacheMember) -> usize {
    hash.segments_of(&member.address).count()
}

fn primaries(hash: &ConsistentHash, member: &CacheMember) -> usize {
    hash.primary_segments_of(&member.address).count()
}

/// Newly owned in `after`.
fn gained(before: &ConsistentHash, after: &ConsistentHash, member: &Address) -> usize {
    let had: BTreeSet<Segment> = before.segments_of(member).collect();
    after.segments_of(member).filter(|segment| !had.contains(segment)).count()
}

fn assert_complete(hash: &ConsistentHash) {
    let takers = hash.members().iter().filter(|member| member.capacity > CapacityFactor::ZERO).count();
    for segment in hash.segments() {
        let owners: BTreeSet<&Address> = hash.owners(segment).collect();
        assert_eq!(owners.len(), takers.min(hash.owner_count().into()), "{segment}");
        assert_eq!(owners.len(), hash.owners(segment).len(), "{segment} has an owner twice");
    }
}

fn assert_balanced(hash: &ConsistentHash) {
    let (segments, count) = (hash.segments().len(), hash.members().len());
    let owners = count.min(hash.owner_count().into());
    for member in hash.members() {
        for (what, has, all) in [
            ("copies", copies(hash, member), segments * owners),
            ("primaries", primaries(hash, member), segments),
        ] {
            let fair = all / count..=all.div_ceil(count);
            assert!(fair.contains(&has), "{has} {what}, fair are {fair:?}, of {count} members");
        }
    }
}

#[test]
fn two_to_a_hundred_members_have_their_share_rounded_up_or_down() {
    for count in 2..=100 {
        for owners in 1..=3 {
            let hash = ConsistentHash::new(members(0..count), owners, SEGMENT_COUNT);
            assert_complete(&hash);
            assert_balanced(&hash);
        }
    }
}

#[test]
fn joiner_gets_its_share_and_no_other_member_gains_segments() {
    let mut hash = ConsistentHash::new(members(0..1), 2, SEGMENT_COUNT);
    for count in 2..=60 {
        let next = hash.rebalanced(members(0..count));
        assert_complete(&next);
        assert_balanced(&next);
        for n in 0..count - 1 {
            // The second member of all makes backups necessary.
            assert_eq!(gained(&hash, &next, &address(n)), 0, "member {n} of {count}");
        }
        hash = next;
    }
}

#[test]
fn only_segments_of_a_departed_member_move() {
    let mut hash = ConsistentHash::new(members(0..40), 2, SEGMENT_COUNT);
    for gone in 0..37 {
        let left = hash.without(|member| *member == address(gone));
        let next = left.rebalanced(members(gone + 1..40));
        assert_complete(&next);
        assert_balanced(&next);
        let moved: usize = (gone + 1..40).map(|n| gained(&hash, &next, &address(n))).sum();
        assert_eq!(moved, hash.segments_of(&address(gone)).count(), "when {gone} left");
        hash = next;
    }
}

#[test]
fn the_next_owner_is_primary_when_the_primary_is_gone() {
    let hash = ConsistentHash::new(members(0..5), 2, SEGMENT_COUNT);
    let left = hash.without(|member| *member == address(3));
    for segment in hash.segments() {
        let stays: Vec<&Address> = hash.owners(segment).filter(|owner| **owner != address(3)).collect();
        assert_eq!(left.owners(segment).collect::<Vec<_>>(), stays);
    }
    let alone = hash.without(|member| *member != address(3));
    assert!(alone.segments().any(|segment| alone.primary(segment).is_none()));
}

#[test]
fn the_backups_of_one_members_segments_are_spread_over_the_others() {
    let hash = ConsistentHash::new(members(0..10), 2, SEGMENT_COUNT);
    for member in hash.members() {
        let backups: BTreeSet<&Address> = hash
            .primary_segments_of(&member.address)
            .filter_map(|segment| hash.owners(segment).nth(1))
            .collect();
        assert!(backups.len() >= 7, "{} of 9", backups.len());
    }
}

#[test]
fn a_member_of_twice_the_capacity_takes_twice_as_much_and_one_of_none_nothing() {
    let mut all = members(0..5);
    all[0].capacity = CapacityFactor::from_thousandths(2_000);
    all[4].capacity = CapacityFactor::ZERO;
    let hash = ConsistentHash::new(all, 2, 250);
    assert_complete(&hash);
    let has: Vec<usize> = hash.members().iter().map(|member| copies(&hash, member)).collect();
    assert_eq!(has, [200, 100, 100, 100, 0]);
    let leads: Vec<usize> = hash.members().iter().map(|member| primaries(&hash, member)).collect();
    assert_eq!(leads, [100, 50, 50, 50, 0]);
}

#[test]
fn no_member_has_two_copies_however_large_it_is() {
    let mut all = members(0..3);
    all[0].capacity = CapacityFactor::from_thousandths(100_000);
    let hash = ConsistentHash::new(all, 2, SEGMENT_COUNT);
    assert_complete(&hash);
    let has: Vec<usize> = hash.members().iter().map(|member| copies(&hash, member)).collect();
    assert_eq!(has, [256, 128, 128]);
}

#[test]
fn members_without_capacity_own_no_segments() {
    let without_capacity = CacheMember { capacity: CapacityFactor::ZERO, ..address(1).into() };
    let hash = ConsistentHash::new(vec![without_capacity], 2, 10);
    assert!(hash.segments().all(|segment| hash.primary(segment).is_none()));
    let hash = hash.rebalanced(members(1..3));
    assert_complete(&hash);
}

#[test]
fn owners_are_on_different_sites_even_if_one_site_is_small() {
    let all =
        vec![at(0, "a", "r", "m0"), at(1, "a", "r", "m1"), at(2, "a", "r", "m2"), at(3, "b", "r", "m3")];
    let hash = ConsistentHash::new(all, 2, SEGMENT_COUNT);
    assert_complete(&hash);
    for segment in hash.segments() {
        assert!(hash.owners(segment).any(|owner| *owner == address(3)), "{segment}");
    }
    let has: Vec<usize> = hash.members().iter().map(|member| copies(&hash, member)).collect();
    assert!(has[..3].iter().all(|has| (85..=86).contains(has)), "{has:?}");
    let leads: Vec<usize> = hash.members().iter().map(|member| primaries(&hash, member)).collect();
    assert_eq!(leads, [64, 64, 64, 64]);
}

#[test]
fn a_new_site_gets_an_owner_of_every_segment() {
    let mut all = vec![at(0, "a", "r", "m0"), at(1, "a", "r", "m1")];
    let hash = ConsistentHash::new(all.clone(), 2, SEGMENT_COUNT);
    all.push(at(2, "b", "r", "m2"));
    let next = hash.rebalanced(all);
    assert_eq!(next.segments_of(&address(2)).count(), 256);
    assert_complete(&next);
}

#[test]
fn writes_go_to_the_owners_of_both_while_entries_move() {
    let before = ConsistentHash::new(members(0..3), 2, SEGMENT_COUNT);
    let after = before.rebalanced(members(1..5));
    let both = before.union(&after);
    for segment in both.segments() {
        let owners: Vec<&Address> = both.owners(segment).collect();
        let old: Vec<&Address> = before.owners(segment).collect();
        assert_eq!(owners[..old.len()], old);
        let expected: BTreeSet<&Address> = before.owners(segment).chain(after.owners(segment)).collect();
        assert_eq!(owners.len(), expected.len());
        assert_eq!(owners.into_iter().collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn keys_are_found_where_hot_rod_clients_look() {
    let hash = ConsistentHash::new(members(0..3), 2, SEGMENT_COUNT);
    assert_eq!(hash.segment_of(b"key1"), Segment(46));
    assert_eq!(hash.segment_of(b""), Segment(10));
}

fn distinct<K: Ord>(owners: &[&CacheMember], key: impl Fn(&CacheMember) -> K) -> usize {
    owners.iter().map(|member| key(member)).collect::<BTreeSet<K>>().len()
}

prop_compose! {
    fn located()(n in 0..1_000u64, site in 0..3u8, rack in 0..3u8, machine in 0..3u8, capacity in 1..4u32) -> CacheMember {
        let member = at(n, &format!("s{site}"), &format!("r{rack}"), &format!("m{machine}"));
        CacheMember { capacity: CapacityFactor::from_thousandths(capacity * 500), ..member }
    }
}

fn distinct_members(mut all: Vec<CacheMember>) -> Vec<CacheMember> {
    let mut seen = BTreeSet::new();
    all.retain(|member| seen.insert(member.address.clone()));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn balance_and_completeness_survive_any_changes(
        rounds in prop::collection::vec(prop::collection::btree_set(0..30u64, 1..20), 1..6),
        owners in 1..4u16,
        segments in 1..300u16,
    ) {
        let mut hash = ConsistentHash::new(members(0..3), owners, segments);
        for numbers in rounds {
            hash = hash.rebalanced(members(numbers));
            assert_complete(&hash);
            assert_balanced(&hash);
            prop_assert_eq!(&hash.rebalanced(hash.members().to_vec()), &hash, "what is balanced stays");
        }
    }

    #[test]
    fn owners_are_as_far_apart_as_their_places_allow(
        first in prop::collection::vec(located(), 1..15),
        second in prop::collection::vec(located(), 1..15),
        owners in 1..4u16,
    ) {
        let hash = ConsistentHash::new(distinct_members(first), owners, 64);
        let hash = hash.rebalanced(distinct_members(second));
        assert_complete(&hash);
        let all: Vec<&CacheMember> = hash.members().iter().collect();
        let sites = distinct(&all, |member| member.location.site.clone());
        for segment in hash.segments() {
            let of: Vec<&CacheMember> =
                hash.places(segment).iter().map(|&place| all[usize::from(place)]).collect();
            prop_assert_eq!(distinct(&of, |member| member.location.site.clone()), of.len().min(sites));
        }
    }
}
