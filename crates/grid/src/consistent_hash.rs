//! The owners of each segment.
//!
//! A key's hash determines its segment permanently. The hash of keys is Hot Rod's, so that clients find the
//! primary by themselves.

use std::fmt;
use std::sync::Arc;

use consort_group::Address;
use consort_hotrod::hash;

use crate::CacheMember;
use crate::placement::{self, Owners};

/// The default number of segments: each of 100 members has some, and every client can receive the list.
pub const SEGMENT_COUNT: u16 = 256;

/// A share of a cache's keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Segment(pub u16);

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns an encoded key's segment among this number of segments.
///
/// # Panics
///
/// If there are no segments.
pub fn segment_of(key: &[u8], segment_count: u16) -> Segment {
    Segment(hash::segment_of(key, segment_count.into()) as u16)
}

/// The owners of all segments. Clones share them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsistentHash {
    members: Arc<[CacheMember]>,
    owner_count: u16,
    owners: Arc<[Owners]>,
}

impl ConsistentHash {
    /// Assigns each segment of a new cache `owner_count` owners, or all members with a capacity.
    ///
    /// # Panics
    ///
    /// If `owner_count` or `segment_count` is zero, or there are more members than a `u16` counts.
    pub fn new(members: Vec<CacheMember>, owner_count: u16, segment_count: u16) -> Self {
        assert!(owner_count > 0 && segment_count > 0, "a cache has owners and segments");
        let empty = Self {
            members: Arc::from([]),
            owner_count,
            owners: vec![Owners::new(); usize::from(segment_count)].into(),
        };
        empty.rebalanced(members)
    }

    /// # Errors
    ///
    /// The first index of an owner that no member has, or zero if there are no owners or no segments.
    pub(crate) fn from_parts(
        members: Vec<CacheMember>,
        owner_count: u16,
        owners: Vec<Owners>,
    ) -> Result<Self, u64> {
        if owner_count == 0 || owners.is_empty() || owners.len() > usize::from(u16::MAX) {
            return Err(0);
        }
        match owners.iter().flatten().find(|place| usize::from(**place) >= members.len()) {
            Some(place) => Err((*place).into()),
            None => Ok(Self { members: members.into(), owner_count, owners: owners.into() }),
        }
    }

    /// Returns a balanced hash that moves little: remaining members keep segments up to their share, and
    /// owners change their order only to balance primaries.
    ///
    /// # Panics
    ///
    /// If there are more members than a `u16` counts.
    pub fn rebalanced(&self, members: Vec<CacheMember>) -> Self {
        assert!(members.len() <= usize::from(u16::MAX), "{} members", members.len());
        let kept = self.owners_among(&members);
        let owners = placement::place(&members, kept, usize::from(self.owner_count));
        Self { members: members.into(), owner_count: self.owner_count, owners: owners.into() }
    }

    /// Returns the hash without removed members; the first remaining owner is the primary. A segment without
    /// owners has lost its entries.
    #[must_use]
    pub fn without(&self, is_gone: impl Fn(&Address) -> bool) -> Self {
        let left: Vec<CacheMember> =
            self.members.iter().filter(|member| !is_gone(&member.address)).cloned().collect();
        let owners = self.owners_among(&left);
        Self { members: left.into(), owner_count: self.owner_count, owners: owners.into() }
    }

    /// Gives a segment without owners those of `other`.
    ///
    /// # Panics
    ///
    /// If the two have different numbers of segments.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let both = self.union(other);
        let mut owners = self.owners_among(&both.members);
        for (owners, all) in owners.iter_mut().zip(both.owners.iter()) {
            if owners.is_empty() {
                owners.clone_from(all);
            }
        }
        Self { members: both.members, owner_count: self.owner_count, owners: owners.into() }
    }

    /// Members outside the map stay as they are.
    pub(crate) fn renamed(&self, names: &std::collections::BTreeMap<Address, CacheMember>) -> Self {
        let renamed = |member: &CacheMember| names.get(&member.address).unwrap_or(member).clone();
        Self { members: self.members.iter().map(renamed).collect(), ..self.clone() }
    }

    pub(crate) fn primaries(&self) -> Self {
        let first = |owners: &Owners| owners.iter().take(1).copied().collect();
        Self { owners: self.owners.iter().map(first).collect(), ..self.clone() }
    }

    /// Returns both hashes' owners, those of `self` first.
    ///
    /// # Panics
    ///
    /// If the two have different numbers of segments.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        assert_eq!(self.owners.len(), other.owners.len(), "segments of one cache");
        let mut members = self.members.to_vec();
        members
            .extend(other.members.iter().filter(|member| self.place_of(&member.address).is_none()).cloned());
        let (mut owners, others) = (self.owners_among(&members), other.owners_among(&members));
        for (owners, others) in owners.iter_mut().zip(others) {
            let more: Owners = others.into_iter().filter(|place| !owners.contains(place)).collect();
            owners.extend(more);
        }
        Self { members: members.into(), owner_count: self.owner_count, owners: owners.into() }
    }

    fn owners_among(&self, members: &[CacheMember]) -> Vec<Owners> {
        let place = |old: &u16| {
            let address = &self.members[usize::from(*old)].address;
            members.iter().position(|member| member.address == *address).map(|place| place as u16)
        };
        let places: Vec<Option<u16>> = (0..self.members.len() as u16).map(|old| place(&old)).collect();
        self.owners
            .iter()
            .map(|owners| owners.iter().filter_map(|&old| places[usize::from(old)]).collect())
            .collect()
    }

    fn place_of(&self, address: &Address) -> Option<u16> {
        self.members.iter().position(|member| member.address == *address).map(|place| place as u16)
    }

    /// Returns the members in the given order.
    pub fn members(&self) -> &[CacheMember] {
        &self.members
    }

    /// Returns the wanted owners of a segment.
    pub fn owner_count(&self) -> u16 {
        self.owner_count
    }

    /// Returns the number of segments.
    pub fn segment_count(&self) -> u16 {
        self.owners.len() as u16
    }

    /// Returns all segments.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> {
        (0..self.segment_count()).map(Segment)
    }

    /// Returns an encoded key's segment.
    pub fn segment_of(&self, key: &[u8]) -> Segment {
        segment_of(key, self.segment_count())
    }

    /// Whether all owners and primaries are equal.
    pub fn has_same_owners_as(&self, other: &Self) -> bool {
        let is_same = |segment| {
            self.primary(segment) == other.primary(segment)
                && self.owners(segment).len() == other.owners(segment).len()
                && self.owners(segment).all(|owner| other.owners(segment).any(|theirs| theirs == owner))
        };
        self.segment_count() == other.segment_count() && self.segments().all(is_same)
    }

    /// Returns the owners' indexes among the members, the primary first.
    pub fn places(&self, segment: Segment) -> &[u16] {
        self.owners.get(usize::from(segment.0)).map_or(&[], |owners| owners.as_slice())
    }

    /// Returns the owners, the primary first.
    pub fn owners(&self, segment: Segment) -> impl ExactSizeIterator<Item = &Address> {
        self.places(segment).iter().map(|&place| &self.members[usize::from(place)].address)
    }

    /// Returns the primary, which orders writes.
    pub fn primary(&self, segment: Segment) -> Option<&Address> {
        self.owners(segment).next()
    }

    /// Returns a member's segments.
    pub fn segments_of(&self, member: &Address) -> impl Iterator<Item = Segment> {
        let place = self.place_of(member);
        self.segments()
            .filter(move |&segment| place.is_some_and(|place| self.places(segment).contains(&place)))
    }

    /// Returns a member's primary segments.
    pub fn primary_segments_of(&self, member: &Address) -> impl Iterator<Item = Segment> {
        let place = self.place_of(member);
        self.segments()
            .filter(move |&segment| place.is_some() && self.places(segment).first().copied() == place)
    }
}
