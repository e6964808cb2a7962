//! Caches of which every member keeps only its own writes ([`CacheMode::Invalidation`]).
//!
//! Every member is the primary of all keys for itself: it writes into its own container, and its backup commands make all other
//! members drop the key. They acknowledge that as any write, so that calls, epochs and repeats are those of the other modes. Of
//! two members that write one key at the same time at most one keeps it. Each drops its entry when it receives the other's
//! command, and one of them receives that after it has written.
//!
//! A dropped key needs no version. A member that returns after a partition begins anew; after a merge of partitions that may
//! all have written, every member does.

use bytes::Bytes;
use consort_group::Address;

use crate::command::Effect;
use crate::event::{EntryEvent, EventKind, Previous, Scope};
use crate::injected_bugs::InjectedBug;
use crate::node::Cx;
use crate::operation::{Action, Change, OperationError, Write};
use crate::replica::{CacheReplica, Installed};
use crate::{CacheMode, Entry, Flags, Segment, SegmentState, Version};

impl CacheReplica {
    /// Returns whether every member has its own entries.
    #[inline]
    pub(crate) fn is_invalidation(&self) -> bool {
        self.config.mode == CacheMode::Invalidation
    }

    /// Checks that the cache supports an operation.
    pub(crate) fn check(&self, action: &Action, flags: Flags) -> Result<(), OperationError> {
        let mode = self.config.mode;
        let is_own = matches!(mode, CacheMode::Local | CacheMode::Invalidation);
        match action {
            Action::Write(_) if flags.contains(Flags::LOCAL) && !is_own => {
                Err(OperationError::Unsupported { what: "a write on one member only", mode })
            }
            Action::Write(Write { change: Change::Clear, .. }) if !self.is_invalidation() => {
                Err(OperationError::Unsupported { what: "removing all keys at once", mode })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a member orders writes in a segment, for itself or for all members.
    pub(crate) fn may_order(&self, installed: &Installed, member: &Address, segment: Segment) -> bool {
        match self.is_invalidation() {
            true => installed.writes.owners(segment).any(|owner| owner == member),
            false => installed.writes.primary(segment) == Some(member),
        }
    }

    /// Returns this member's index among all members, and their number.
    pub(crate) fn place(&self) -> (u64, u64) {
        let Some(topology) = self.topology() else { return (0, 1) };
        let place = topology.addresses().position(|member| *member == self.member.address);
        (place.unwrap_or_default() as u64, topology.members.len().max(1) as u64)
    }

    /// Applies the write of another member.
    pub(crate) fn invalidate(&mut self, cx: &mut Cx, segment: Segment, key: &[u8], effect: &Effect) {
        match effect {
            Effect::Invalidate if self.container.state(segment) == SegmentState::Owned => {
                let gone = self.container.remove(segment, key, Version::NONE, cx.now).previous;
                if let Some(entry) = gone {
                    self.tell_gone(cx, EventKind::Removed, Bytes::copy_from_slice(key), entry);
                }
            }
            Effect::InvalidateAll if !cx.has(InjectedBug::ClearIgnored) => self.clear_here(cx),
            _ => {}
        }
    }

    /// Drops all entries of this member.
    pub(crate) fn clear_here(&mut self, cx: &mut Cx) {
        for segment in self.config.all_segments() {
            self.container.clear_segment(segment);
        }
        // Listeners receive a gap and no event of each entry, because there may be millions.
        self.interrupt_listeners(cx, false);
    }

    /// Notifies the listeners of this member of an entry that it has lost, and that it has not removed itself.
    pub(crate) fn tell_gone(&mut self, cx: &mut Cx, kind: EventKind, key: Bytes, entry: Entry) {
        if !self.listeners.is_idle() {
            let version = entry.version;
            let previous = (!entry.is_passive()).then_some(Previous { value: entry.value, version });
            self.offer(cx, Scope::Local, &EntryEvent { kind, key, value: None, previous, version });
        }
    }
}
