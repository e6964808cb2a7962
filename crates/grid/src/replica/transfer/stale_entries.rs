//! Stale entries: after a full restart, the entries that an owner has from the earlier incarnation and that the segment's first
//! owner does not have.
//!
//! After a full restart, the first owner of a segment fetches the entries of the other owners. Then these fetch its entries
//! (`transfer`). Entries may disappear in between: an unacknowledged write that only the first owner had may have replaced an
//! entry that others still have, and may have expired since. So an owner that has fetched a segment removes the entries that
//! have not arrived.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_group::Time;

use crate::container::ChunkLimits;
use crate::cx::Cx;
use crate::replica::Shared;
use crate::replica::store::Store;
use crate::replica::transfer::state_consumer::Transfer;
use crate::{Cursor, Segment};

/// The limit of keys gathered at a time, so that the segment's lock does not block other threads for longer.
const GATHERED: ChunkLimits = ChunkLimits { entries_max: 4_096, bytes_max: usize::MAX };

impl Transfer {
    /// Gathers the keys that a segment has from an earlier incarnation, before it is fetched from its first owner: none of them
    /// has arrived yet. If the segment is fetched anew, keys that had arrived stay so.
    pub(crate) fn mark_stale(&mut self, shared: &Shared, segment: Segment) {
        let Some(begun) =
            shared.segments[usize::from(segment.0)].begun_again.filter(|_| !shared.is_restoring())
        else {
            return;
        };
        if self.leftovers.contains_key(&segment) {
            return;
        }
        let mut keys = BTreeSet::new();
        let mut at = Some(Cursor::START);
        while let Some(cursor) = at {
            let found = shared.container.visit(segment, cursor, GATHERED, Time::ZERO, |visited| {
                if visited.version() < begun {
                    keys.insert(Bytes::copy_from_slice(visited.key()));
                }
            });
            at = found.ok().flatten();
        }
        self.leftovers.insert(segment, keys);
    }

    /// Notes keys of a segment whose entries have arrived.
    pub(crate) fn unmark_received<'a>(&mut self, segment: Segment, keys: impl Iterator<Item = &'a [u8]>) {
        if let Some(leftovers) = self.leftovers.get_mut(&segment) {
            keys.for_each(|key| {
                leftovers.remove(key);
            });
        }
    }

    /// Removes the entries of a segment that have not arrived, once the transfer is complete.
    pub(crate) fn remove_stale(
        &mut self,
        shared: &mut Shared,
        store: &mut Store,
        cx: &mut Cx,
        segment: Segment,
    ) {
        let Some(leftovers) = self.leftovers.remove(&segment) else { return };
        let Some(begun) = shared.state(segment).begun_again.take() else { return };
        for key in leftovers {
            // Entries written meanwhile are newer.
            store.erase(shared, cx, segment, &key, begun);
        }
    }
}
