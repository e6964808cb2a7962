//! The public keys of members, and of members that may join or merge.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::wire::KEY_BLOCK_MEMBERS_MAX;
use crate::{Address, View};

#[derive(Default)]
pub(super) struct PublicKeys {
    members: BTreeMap<Address, Bytes>,
    /// Each with its place in `order`.
    candidates: BTreeMap<Address, (u64, Bytes)>,
    /// The candidates, the oldest first.
    order: BTreeMap<u64, Address>,
    next: u64,
}

impl PublicKeys {
    /// A member's key does not change: a joiner that claims a member's address must not get the key in its place.
    pub(super) fn learn(&mut self, member: &Address, key: &Bytes) {
        if key.is_empty() || self.members.contains_key(member) {
            return;
        }
        self.forget_candidate(member);
        if self.candidates.len() >= KEY_BLOCK_MEMBERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.candidates.remove(&oldest);
        }
        // A copy, because a slice would keep the whole packet.
        self.candidates.insert(member.clone(), (self.next, Bytes::copy_from_slice(key)));
        self.order.insert(self.next, member.clone());
        self.next += 1;
    }

    fn forget_candidate(&mut self, member: &Address) -> Option<Bytes> {
        let (place, key) = self.candidates.remove(member)?;
        self.order.remove(&place);
        Some(key)
    }

    /// Others than the view's members stay candidates: a view may be on its way when a member joins.
    pub(super) fn follow(&mut self, view: &View) {
        self.members.retain(|member, _| view.contains(member));
        for member in view.members() {
            if let Some(key) = self.forget_candidate(member) {
                self.members.entry(member.clone()).or_insert(key);
            }
        }
    }

    pub(super) fn of(&self, member: &Address) -> Option<&Bytes> {
        self.members.get(member).or_else(|| self.candidates.get(member).map(|(_, key)| key))
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    #[test]
    fn a_learned_key_keeps_no_packet() {
        let packet = Bytes::from(vec![7; 64 * 1024]);
        let mut publics = PublicKeys::default();
        publics.learn(&member(1), &packet.slice(..3));
        assert!(packet.try_into_mut().is_ok(), "nothing else refers to the packet");
        assert_eq!(publics.of(&member(1)).map(|key| key.len()), Some(3));
    }

    #[test]
    fn the_oldest_candidate_is_forgotten_first() {
        let mut publics = PublicKeys::default();
        let of = |n: usize| member(n as u64);
        (0..KEY_BLOCK_MEMBERS_MAX).for_each(|n| publics.learn(&of(n), &Bytes::from_static(b"k")));
        publics.learn(&of(0), &Bytes::from_static(b"newer"));
        publics.learn(&of(KEY_BLOCK_MEMBERS_MAX), &Bytes::from_static(b"k"));
        assert_eq!(publics.of(&of(1)), None);
        assert_eq!(publics.of(&of(0)).map(|key| &key[..]), Some(&b"newer"[..]));
    }
}
