//! Caches of which every member keeps only its own writes ([`CacheMode::Invalidation`];
//! `docs/design/2026-11-grid.md`, Invalidation).
//!
//! Every member is its own primary of all keys; its backup commands make all other members drop the key.
//! Calls, epochs, acknowledgements and repeats are as in other modes.
//!
//! A dropped key needs no version: a member that returns after a partition begins anew, and after a merge of
//! partitions that may all have written, every member does.

use consort_group::Address;

use crate::operation::{Action, Change, OperationError, Write};
use crate::replica::{Installed, Shared};
use crate::{CacheMode, Flags, Segment};

impl Shared {
    #[inline]
    pub(crate) fn is_invalidation(&self) -> bool {
        self.config.mode == CacheMode::Invalidation
    }

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

    pub(crate) fn may_order(&self, installed: &Installed, member: &Address, segment: Segment) -> bool {
        match self.is_invalidation() {
            true => installed.writes.owners(segment).any(|owner| owner == member),
            false => installed.writes.primary(segment) == Some(member),
        }
    }

    pub(crate) fn place(&self) -> (u64, u64) {
        let Some(topology) = self.topology() else { return (0, 1) };
        let place = topology.addresses().position(|member| *member == self.member.address);
        (place.unwrap_or_default() as u64, topology.members.len().max(1) as u64)
    }
}
