//! Shortage of memory: the behaviour of a member when its process, or that of another member, has no memory for more entries.
//!
//! A primary refuses a write, before it orders it, in two cases: its own process has no memory for the added bytes, or another
//! write owner has reported a shortage. A write owner never refuses a write that a primary has ordered, because it was, or will
//! be, acknowledged. So each member reports the begin and end of its shortage to all others. Writes that primaries order until
//! they have received the report use the memory between the high-water mark and the limit. A member whose memory is critical
//! requests no further chunks of segments that move to it; the senders keep these segments meanwhile.

use std::collections::BTreeMap;

use consort_group::{Address, View};
use consort_memory::{ProcessMemory, Shortage};

use crate::Segment;
use crate::command::{Body, CacheId};
use crate::node::Cx;
use crate::node::Node;
use crate::operation::{Change, OperationError};
use crate::replica::CacheReplica;

/// No cache: a report of memory concerns the member.
const NO_CACHE: CacheId = CacheId(0);

/// A member's knowledge of its own memory and of other members' shortages.
#[derive(Default)]
pub(crate) struct Memory {
    own: Option<ProcessMemory>,
    /// Whether this member has reported a shortage to the others.
    is_told_short: bool,
    /// The other members of the view.
    others: Vec<Address>,
    /// The other members that are short of memory.
    short: BTreeMap<Address, Shortage>,
}

impl Memory {
    /// Handles another member's report of its memory.
    pub(crate) fn note_member(&mut self, member: &Address, shortage: Option<Shortage>) {
        match shortage {
            Some(shortage) if self.others.contains(member) => {
                drop(self.short.insert(member.clone(), shortage));
            }
            Some(_) => {}
            None => drop(self.short.remove(member)),
        }
    }

    /// Returns whether the end of a shortage is still to be reported.
    pub(crate) const fn is_told_short(&self) -> bool {
        self.is_told_short
    }

    /// Returns whether writes are refused here that are not small. State transfers to this member then proceed one chunk at a
    /// time.
    pub(crate) fn is_tight(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.has_room(0))
    }

    /// Returns whether work that can wait has to wait.
    pub(crate) fn is_critical(&self) -> bool {
        self.own.as_ref().is_some_and(ProcessMemory::is_critical)
    }
}

impl Node {
    /// Sets the limited memory of this member's process: writes are refused during a shortage, and other members receive a
    /// report. To be called before caches are opened, because their containers count in the same memory.
    pub fn set_memory(&mut self, memory: ProcessMemory) {
        self.cx.memory.own = Some(memory);
    }

    /// Returns the other members that have reported a shortage of memory.
    pub fn short_members(&self) -> impl Iterator<Item = (&Address, &Shortage)> {
        self.cx.memory.short.iter()
    }
}

impl Cx {
    /// Reports to the other members that a shortage of this one has begun or ended.
    pub(crate) fn tell_memory(&mut self) {
        let Some(own) = &self.memory.own else { return };
        let is_short = own.is_short();
        if is_short == self.memory.is_told_short {
            return;
        }
        self.memory.is_told_short = is_short;
        let shortage = is_short.then(|| own.shortage());
        for other in self.memory.others.clone() {
            self.send(&other, NO_CACHE, 0, Body::Memory { shortage: shortage.clone() });
        }
    }

    /// Handles a new view: reports a shortage to the members that are new in it.
    pub(crate) fn keep_view(&mut self, view: &View) {
        let others: Vec<Address> = view.members().iter().filter(|one| **one != self.local).cloned().collect();
        self.memory.short.retain(|member, _| others.contains(member));
        let before = std::mem::replace(&mut self.memory.others, others);
        let Some(own) = self.memory.own.as_ref().filter(|_| self.memory.is_told_short) else { return };
        let shortage = Some(own.shortage());
        let news: Vec<Address> =
            self.memory.others.iter().filter(|other| !before.contains(other)).cloned().collect();
        for new in news {
            self.send(&new, NO_CACHE, 0, Body::Memory { shortage: shortage.clone() });
        }
    }
}

impl CacheReplica {
    /// Returns why a write is not ordered, if an owner of its key has no memory for it.
    pub(crate) fn memory_refusal(
        &self,
        cx: &Cx,
        segment: Segment,
        key: &[u8],
        change: &Change,
    ) -> Option<OperationError> {
        let Change::Put { value, lifetime } = change else { return None };
        let refused =
            |member: &Address, shortage| OperationError::NoMemory { member: member.clone().into(), shortage };
        if let Err(shortage) = self.container.admit(segment, key, value.len(), *lifetime) {
            return Some(refused(&cx.local, shortage));
        }
        if cx.memory.short.is_empty() || self.is_invalidation() {
            return None;
        }
        let short = |owner: &Address| Some((owner.clone(), cx.memory.short.get(owner)?.clone()));
        let (owner, shortage) = self.write_owners(segment).find_map(short)?;
        let adds = self.container.growth_of(segment, key, value.len(), *lifetime) > 0;
        adds.then(|| refused(&owner, shortage))
    }
}
