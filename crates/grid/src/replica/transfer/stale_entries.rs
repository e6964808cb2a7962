//! Stale entries: after a full restart, entries that the segment's first owner does not have.
//!
//! The first owner fetches the entries of the other owners; then these fetch its entries (`transfer`). An
//! unacknowledged write of the first owner may have replaced an entry that others still have, and may have
//! expired since. So an owner that has fetched a segment removes the entries that have not arrived.

use std::collections::BTreeSet;

use bytes::Bytes;
use consort_group::Time;

use crate::container::ChunkLimits;
use crate::cx::Cx;
use crate::replica::Shared;
use crate::replica::store::Store;
use crate::replica::transfer::state_consumer::Transfer;
use crate::{Cursor, Segment};

/// Keys gathered under one hold of the segment's lock.
const GATHERED: ChunkLimits = ChunkLimits { entries_max: 4_096, bytes_max: usize::MAX };

impl Transfer {
    /// Before the segment is fetched from its first owner. A repeated fetch keeps arrived keys.
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

    pub(crate) fn unmark_received<'a>(&mut self, segment: Segment, keys: impl Iterator<Item = &'a [u8]>) {
        if let Some(leftovers) = self.leftovers.get_mut(&segment) {
            keys.for_each(|key| {
                leftovers.remove(key);
            });
        }
    }

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
