//! Owners for all segments: everybody gets a fair share, owners of one segment stand apart, and little moves.
//!
//! First each member's share is decided ([`share`]), then who stays an owner, then who takes what has too few owners;
//! only then do copies move, from members with too much to members with too little ([`exchange`]). Where a copy cannot
//! move directly without putting owners of a segment closer together, it moves in steps. Everything is decided by the
//! members' order and integers, so that all members come to the same.

mod exchange;
mod share;

use crate::consistent_hash::Owners;
use crate::{CacheMember, Location};

/// How close the owners of a segment are: pairs on one machine, on one rack, on one site, each level within the one
/// before it. Less is better, and sites count first.
type Closeness = [usize; 3];

/// Owners under construction.
struct Draft<'a> {
    members: &'a [CacheMember],
    owners: Vec<Owners>,
    /// Copies that each member has now.
    held: Vec<usize>,
    /// Copies that each member should have.
    due: Vec<usize>,
}

/// Owners of all segments. `kept` are those that members have already, fewer or more than wanted.
pub(crate) fn place(members: &[CacheMember], kept: Vec<Owners>, owner_count: usize) -> Vec<Owners> {
    let takers = members.iter().filter(|member| member.capacity.thousandths() > 0).count();
    let count = owner_count.min(takers);
    let mut draft = Draft { members, owners: kept, held: vec![0; members.len()], due: Vec::new() };
    for owners in &mut draft.owners {
        owners.retain(|place| members[usize::from(*place)].capacity.thousandths() > 0);
        owners.iter().for_each(|&place| draft.held[usize::from(place)] += 1);
    }
    draft.due = share::copies(members, draft.owners.len(), count, &draft.held);
    for segment in 0..draft.owners.len() {
        while draft.owners[segment].len() > count {
            draft.drop_one(segment);
        }
        while draft.owners[segment].len() < count {
            draft.add_one(segment);
        }
    }
    draft.spread();
    draft.level_copies();
    draft.level_primaries();
    draft.owners
}

impl Draft<'_> {
    fn location(&self, place: u16) -> &Location {
        &self.members[usize::from(place)].location
    }

    /// How close a member is to a segment's owners, without one of them.
    fn closeness_to(&self, place: u16, segment: usize, without: Option<u16>) -> Closeness {
        let mut pairs = [0; 3];
        for &owner in self.owners[segment].iter().filter(|&&owner| Some(owner) != without && owner != place) {
            let level = self.location(place).closeness(self.location(owner));
            pairs[..level].iter_mut().for_each(|pairs| *pairs += 1);
        }
        pairs
    }

    /// How much a member has beyond its share; negative if it lacks some.
    fn surplus(&self, place: u16) -> isize {
        self.held[usize::from(place)] as isize - self.due[usize::from(place)] as isize
    }

    fn takers(&self) -> impl Iterator<Item = u16> {
        (0..self.members.len() as u16)
            .filter(|&place| self.members[usize::from(place)].capacity.thousandths() > 0)
    }

    /// One owner too many: of the backups, the closest to the others goes, or the one with most too much.
    fn drop_one(&mut self, segment: usize) {
        let backups = self.owners[segment].iter().copied().enumerate().skip(1);
        let worst = backups
            .max_by_key(|&(at, place)| (self.closeness_to(place, segment, None), self.surplus(place), at));
        if let Some((at, place)) = worst {
            self.owners[segment].remove(at);
            self.held[usize::from(place)] -= 1;
        }
    }

    /// One owner too few: who stands apart and lacks most becomes one.
    fn add_one(&mut self, segment: usize) {
        let others = self.takers().filter(|place| !self.owners[segment].contains(place));
        let best = others.min_by_key(|&place| {
            (self.closeness_to(place, segment, None), self.surplus(place), scatter(segment, place), place)
        });
        if let Some(place) = best {
            self.owners[segment].push(place);
            self.held[usize::from(place)] += 1;
        }
    }

    /// `to` becomes an owner in the place of `from`.
    fn hand_over(&mut self, segment: usize, from: u16, to: u16) {
        if let Some(owner) = self.owners[segment].iter_mut().find(|owner| **owner == from) {
            *owner = to;
            self.held[usize::from(from)] -= 1;
            self.held[usize::from(to)] += 1;
        }
    }

    /// Owners that stand closer than they need, since a site or a rack was added, change.
    fn spread(&mut self) {
        for segment in 0..self.owners.len() {
            while let Some((from, to)) = self.better_apart(segment) {
                self.hand_over(segment, from, to);
            }
        }
    }

    fn better_apart(&self, segment: usize) -> Option<(u16, u16)> {
        let exchanges = self.owners[segment].iter().flat_map(|&from| {
            let now = self.closeness_to(from, segment, Some(from));
            self.takers().filter(|to| !self.owners[segment].contains(to)).filter_map(move |to| {
                let then = self.closeness_to(to, segment, Some(from));
                (then < now).then_some((from, to, then))
            })
        });
        exchanges
            .min_by_key(|&(from, to, then)| {
                (then, self.surplus(to), -self.surplus(from), scatter(segment, to), to)
            })
            .map(|(from, to, _)| (from, to))
    }
}

/// A number for a segment and a member that says nothing about either: ties are broken by it, so that the backups of
/// one member's segments are spread over all others, which then share its work when it is gone.
fn scatter(segment: usize, place: u16) -> u64 {
    let mixed = (segment as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(place) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

#[cfg(test)]
mod tests;
