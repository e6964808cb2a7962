//! The public keys of members, and of members that may join or merge.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::wire::KEY_BLOCK_MEMBERS_MAX;
use crate::{Address, View};

#[derive(Default)]
pub(super) struct PublicKeys {
    members: BTreeMap<Address, Bytes>,
    /// The newest last.
    candidates: VecDeque<(Address, Bytes)>,
}

impl PublicKeys {
    /// A member's key does not change: a joiner that claims a member's address must not get the key in its place.
    pub(super) fn learn(&mut self, member: &Address, key: &Bytes) {
        if key.is_empty() || self.members.contains_key(member) {
            return;
        }
        self.candidates.retain(|(candidate, _)| candidate != member);
        if self.candidates.len() >= KEY_BLOCK_MEMBERS_MAX {
            self.candidates.pop_front();
        }
        self.candidates.push_back((member.clone(), key.clone()));
    }

    /// Others than the view's members stay candidates: a view may be on its way when a member joins.
    pub(super) fn follow(&mut self, view: &View) {
        self.members.retain(|member, _| view.contains(member));
        for member in view.members() {
            let at = self.candidates.iter().position(|(candidate, _)| candidate == member);
            if let Some((member, key)) = at.and_then(|at| self.candidates.remove(at)) {
                self.members.entry(member).or_insert(key);
            }
        }
    }

    pub(super) fn of(&self, member: &Address) -> Option<&Bytes> {
        let candidate = || self.candidates.iter().find(|(candidate, _)| candidate == member);
        self.members.get(member).or_else(|| candidate().map(|(_, key)| key))
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
