//! What an owner has from before its cluster ended, and who gives it the segment has not.
//!
//! When a cluster begins again, the first owner of a segment fetches what the others have, and then these fetch what it has
//! (`transfer`). Something may have gone in between: what the first owner alone had written, and nobody had acknowledged, may have
//! replaced what others still have, and its time may be over. So who has fetched a segment gives up what has not come.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_group::Time;

use super::cache::Cache;
use super::cx::Cx;
use crate::container::ChunkLimits;
use crate::{Cursor, Segment};

/// Keys that are gathered at a time: nobody waits for a segment's lock for longer.
const GATHERED: ChunkLimits = ChunkLimits { entries_max: 4_096, bytes_max: usize::MAX };

impl Cache {
    /// A segment is about to be fetched from who has everything: what is here from an earlier life has not come yet. Where it is
    /// fetched anew, what had come stays so.
    pub(super) fn gather_leftovers(&mut self, segment: Segment) {
        let Some(begun) = self.state(segment).begun_again.filter(|_| !self.is_restoring()) else { return };
        if self.transfer.leftovers.contains_key(&segment) {
            return;
        }
        let mut keys = BTreeSet::new();
        let mut at = Some(Cursor::START);
        while let Some(cursor) = at {
            let found = self.container.visit(segment, cursor, GATHERED, Time::ZERO, |visited| {
                if visited.version() < begun {
                    keys.insert(Bytes::copy_from_slice(visited.key()));
                }
            });
            at = found.ok().flatten();
        }
        self.transfer.leftovers.insert(segment, keys);
    }

    /// Some of a segment is about to be put here.
    pub(super) fn note_come<'a>(&mut self, segment: Segment, keys: impl Iterator<Item = &'a [u8]>) {
        if let Some(leftovers) = self.transfer.leftovers.get_mut(&segment) {
            keys.for_each(|key| {
                leftovers.remove(key);
            });
        }
    }

    /// All of a segment has come.
    pub(super) fn give_up_leftovers(&mut self, cx: &mut Cx, segment: Segment) {
        let Some(leftovers) = self.transfer.leftovers.remove(&segment) else { return };
        let Some(begun) = self.state(segment).begun_again.take() else { return };
        for key in leftovers {
            // What has been written meanwhile is newer.
            self.erase(cx, segment, &key, begun);
        }
    }
}
