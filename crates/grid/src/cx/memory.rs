//! Shortage of memory in the process of this member or of others.
//!
//! A primary refuses a write, before it orders it, if its process has no memory for it or another write owner
//! has reported a shortage. A write owner never refuses an ordered write, because it was, or will be,
//! acknowledged. So each member reports the begin and end of its shortage to all others; writes ordered
//! before the report arrives use the memory between the high-water mark and the limit. A member whose memory
//! is critical requests no further chunks; the senders keep these segments.

use std::collections::BTreeMap;

use consort_group::Address;
use consort_memory::{ProcessMemory, Shortage};

#[derive(Default)]
pub(crate) struct Memory {
    own: Option<ProcessMemory>,
    is_told_short: bool,
    others: Vec<Address>,
    short: BTreeMap<Address, Shortage>,
}

impl Memory {
    pub(crate) fn set_own(&mut self, memory: ProcessMemory) {
        self.own = Some(memory);
    }

    pub(crate) fn short_members(&self) -> impl Iterator<Item = (&Address, &Shortage)> {
        self.short.iter()
    }

    pub(crate) fn note_member(&mut self, member: &Address, shortage: Option<Shortage>) {
        match shortage {
            Some(shortage) if self.others.contains(member) => {
                drop(self.short.insert(member.clone(), shortage));
            }
            Some(_) => {}
            None => drop(self.short.remove(member)),
        }
    }

    /// Each report is returned once, with the members to send it to.
    pub(crate) fn take_report(&mut self) -> Option<(Vec<Address>, Option<Shortage>)> {
        let own = self.own.as_ref()?;
        let is_short = own.is_short();
        if is_short == self.is_told_short {
            return None;
        }
        self.is_told_short = is_short;
        Some((self.others.clone(), is_short.then(|| own.shortage())))
    }

    /// Returns this member's shortage and the new members to report it to.
    pub(crate) fn keep_members(&mut self, others: Vec<Address>) -> Option<(Vec<Address>, Shortage)> {
        self.short.retain(|member, _| others.contains(member));
        let before = std::mem::replace(&mut self.others, others);
        let own = self.own.as_ref().filter(|_| self.is_told_short)?;
        let new = self.others.iter().filter(|other| !before.contains(other)).cloned().collect();
        Some((new, own.shortage()))
    }

    pub(crate) fn shortage_of(&self, member: &Address) -> Option<&Shortage> {
        self.short.get(member)
    }

    pub(crate) fn has_short_member(&self) -> bool {
        !self.short.is_empty()
    }

    pub(crate) const fn is_told_short(&self) -> bool {
        self.is_told_short
    }

    /// Only small writes are accepted, and state transfers to this member proceed one chunk at a time.
    pub(crate) fn is_tight(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.has_room(0))
    }

    pub(crate) fn is_critical(&self) -> bool {
        self.own.as_ref().is_some_and(ProcessMemory::is_critical)
    }
}
