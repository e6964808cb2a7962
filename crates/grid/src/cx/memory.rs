//! Shortage of memory: the behaviour of a member when its process, or that of another member, has no memory for more entries.
//!
//! A primary refuses a write, before it orders it, in two cases: its own process has no memory for the added bytes, or another
//! write owner has reported a shortage. A write owner never refuses a write that a primary has ordered, because it was, or will
//! be, acknowledged. So each member reports the begin and end of its shortage to all others. Writes that primaries order until
//! they have received the report use the memory between the high-water mark and the limit. A member whose memory is critical
//! requests no further chunks of segments that move to it; the senders keep these segments meanwhile.

use std::collections::BTreeMap;

use consort_group::Address;
use consort_memory::{ProcessMemory, Shortage};

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
    /// Sets the limited memory of this member's process.
    pub(crate) fn set_own(&mut self, memory: ProcessMemory) {
        self.own = Some(memory);
    }

    /// Returns the other members that are short of memory.
    pub(crate) fn short_members(&self) -> impl Iterator<Item = (&Address, &Shortage)> {
        self.short.iter()
    }

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

    /// Returns the members to which the begin or the end of a shortage of this member is to be reported, and the shortage. It is
    /// to be reported once.
    pub(crate) fn take_report(&mut self) -> Option<(Vec<Address>, Option<Shortage>)> {
        let own = self.own.as_ref()?;
        let is_short = own.is_short();
        if is_short == self.is_told_short {
            return None;
        }
        self.is_told_short = is_short;
        Some((self.others.clone(), is_short.then(|| own.shortage())))
    }

    /// Handles a new view of these other members. Returns the members to which a shortage of this member is to be reported
    /// because they are new, and the shortage.
    pub(crate) fn keep_members(&mut self, others: Vec<Address>) -> Option<(Vec<Address>, Shortage)> {
        self.short.retain(|member, _| others.contains(member));
        let before = std::mem::replace(&mut self.others, others);
        let own = self.own.as_ref().filter(|_| self.is_told_short)?;
        let new = self.others.iter().filter(|other| !before.contains(other)).cloned().collect();
        Some((new, own.shortage()))
    }

    /// Returns the shortage that another member has reported.
    pub(crate) fn shortage_of(&self, member: &Address) -> Option<&Shortage> {
        self.short.get(member)
    }

    /// Returns whether another member is short of memory.
    pub(crate) fn has_short_member(&self) -> bool {
        !self.short.is_empty()
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
