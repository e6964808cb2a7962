//! The placement of segments: every member gets a fair share, owners of one segment are apart, and few
//! segments move.
//!
//! The placement decides each member's share ([`share`]), then the remaining owners, then the takers of
//! segments with too few. Only then do copies move ([`exchange`]), in several steps if a direct move would
//! put owners closer together. The result depends only on the members' order and on integers, so that all
//! members compute the same.

mod exchange;
mod share;

use smallvec::SmallVec;

use crate::{CacheMember, Location};

/// A segment's owners as indexes of members, the primary first.
pub type Owners = SmallVec<[u16; 4]>;

/// The pairs of a segment's owners at one site, in one rack, on one machine. Less is better, and sites count
/// first.
type Closeness = [usize; 3];

struct Draft<'a> {
    members: &'a [CacheMember],
    owners: Vec<Owners>,
    held: Vec<usize>,
    due: Vec<usize>,
}

/// `kept` are the present owners, fewer or more than wanted.
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

    fn closeness_to(&self, place: u16, segment: usize, without: Option<u16>) -> Closeness {
        let mut pairs = [0; 3];
        for &owner in self.owners[segment].iter().filter(|&&owner| Some(owner) != without && owner != place) {
            let level = self.location(place).closeness(self.location(owner));
            pairs[..level].iter_mut().for_each(|pairs| *pairs += 1);
        }
        pairs
    }

    fn surplus(&self, place: u16) -> isize {
        self.held[usize::from(place)] as isize - self.due[usize::from(place)] as isize
    }

    fn takers(&self) -> impl Iterator<Item = u16> {
        (0..self.members.len() as u16)
            .filter(|&place| self.members[usize::from(place)].capacity.thousandths() > 0)
    }

    /// Removes the backup closest to the others, or the one furthest above its share.
    fn drop_one(&mut self, segment: usize) {
        let backups = self.owners[segment].iter().copied().enumerate().skip(1);
        let worst = backups
            .max_by_key(|&(at, place)| (self.closeness_to(place, segment, None), self.surplus(place), at));
        if let Some((at, place)) = worst {
            self.owners[segment].remove(at);
            self.held[usize::from(place)] -= 1;
        }
    }

    /// Adds the member that is most apart and furthest below its share.
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

    fn hand_over(&mut self, segment: usize, from: u16, to: u16) {
        if let Some(owner) = self.owners[segment].iter_mut().find(|owner| **owner == from) {
            *owner = to;
            self.held[usize::from(from)] -= 1;
            self.held[usize::from(to)] += 1;
        }
    }

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

/// Breaks ties pseudo-randomly: the backups of one member's segments are spread over all others, which share
/// its work when it is lost.
fn scatter(segment: usize, place: u16) -> u64 {
    let mixed = (segment as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(place) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

#[cfg(test)]
mod tests;
