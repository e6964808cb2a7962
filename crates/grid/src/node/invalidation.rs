//! Caches of which every member keeps what it has put itself ([`CacheMode::Invalidation`]).
//!
//! Every member is the primary of all keys for itself: it writes into its own container, and its backup commands tell all
//! others to drop the key. They acknowledge that as they acknowledge any write, so that calls, epochs and repeats are
//! those of the other modes. Of two members that write one key at the same time at most one keeps it: each drops what it
//! has when it hears of the other, and one of them hears of the other after it has written.
//!
//! What is dropped needs no version. Whoever was parted and comes back begins anew, and after a merge of sides that may
//! all have written everybody does.

use bytes::Bytes;
use consort_group::Address;

use super::cache::{Cache, Installed};
use super::cx::Cx;
use crate::command::Effect;
use crate::event::{EntryEvent, EventKind, Previous, Scope};
use crate::operation::{Action, Change, OperationError, Write};
use crate::planted::Planted;
use crate::{CacheMode, Entry, Flags, Segment, SegmentState, Version};

impl Cache {
    /// Whether every member has its own entries.
    #[inline]
    pub(super) fn is_invalidation(&self) -> bool {
        self.config.mode == CacheMode::Invalidation
    }

    /// Whether the cache has what an operation asks for.
    pub(super) fn check(&self, action: &Action, flags: Flags) -> Result<(), OperationError> {
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

    /// Whether a member orders writes in a segment, for itself or for all.
    pub(super) fn may_order(&self, installed: &Installed, member: &Address, segment: Segment) -> bool {
        match self.is_invalidation() {
            true => installed.writes.owners(segment).any(|owner| owner == member),
            false => installed.writes.primary(segment) == Some(member),
        }
    }

    /// This member's place among all, and how many they are.
    pub(super) fn place(&self) -> (u64, u64) {
        let Some(topology) = self.topology() else { return (0, 1) };
        let place = topology.addresses().position(|member| *member == self.member.address);
        (place.unwrap_or_default() as u64, topology.members.len().max(1) as u64)
    }

    /// Another member has written.
    pub(super) fn invalidate(&mut self, cx: &mut Cx, segment: Segment, key: &[u8], effect: &Effect) {
        match effect {
            Effect::Invalidate if self.container.state(segment) == SegmentState::Owned => {
                let gone = self.container.remove(segment, key, Version::NONE, cx.now).previous;
                if let Some(entry) = gone {
                    self.tell_gone(cx, EventKind::Removed, Bytes::copy_from_slice(key), entry);
                }
            }
            Effect::InvalidateAll if !cx.has(Planted::ClearIgnored) => self.clear_here(cx),
            _ => {}
        }
    }

    /// Drops all entries of this member.
    pub(super) fn clear_here(&mut self, cx: &mut Cx) {
        for segment in self.config.all_segments() {
            self.container.clear_segment(segment);
        }
        // Listeners are not told of each: there may be millions.
        self.interrupt_listeners(cx, false);
    }

    /// Tells the listeners of this member of an entry that it has no longer, and that it has not removed itself.
    pub(super) fn tell_gone(&mut self, cx: &mut Cx, kind: EventKind, key: Bytes, entry: Entry) {
        if !self.listeners.is_idle() {
            let version = entry.version;
            let previous = (!entry.is_passive()).then_some(Previous { value: entry.value, version });
            self.offer(cx, Scope::Local, &EntryEvent { kind, key, value: None, previous, version });
        }
    }
}
