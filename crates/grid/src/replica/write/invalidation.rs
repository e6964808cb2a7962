//! Caches of which every member keeps only its own writes ([`CacheMode::Invalidation`]).
//!
//! Every member is the primary of all keys for itself: it writes into its own container, and its backup commands make all other
//! members drop the key. They acknowledge that as any write, so that calls, epochs and repeats are those of the other modes. Of
//! two members that write one key at the same time at most one keeps it. Each drops its entry when it receives the other's
//! command, and one of them receives that after it has written.
//!
//! A dropped key needs no version. A member that returns after a partition begins anew; after a merge of partitions that may
//! all have written, every member does.

use consort_group::Address;

use crate::operation::{Action, Change, OperationError, Write};
use crate::replica::{Installed, Shared};
use crate::{CacheMode, Flags, Segment};

impl Shared {
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
}
