use std::sync::{Arc, PoisonError};
use std::vec;

use consort_group::Time;

use super::{IndexLookup, IndexedFields};
use crate::Segment;
use crate::container::{ChunkLimits, Container, Cursor, SegmentGone, Visited};

/// Entries of one step of a build, under a segment's lock: some hundred microseconds.
const BUILD_STEP_MAX: usize = 256;

/// The indexes of a container's segments.
#[derive(Clone, Copy)]
pub struct FieldIndexes<'c> {
    container: &'c Container,
}

impl FieldIndexes<'_> {
    /// Sets the indexed fields. The present entries are not indexed before [`FieldIndexes::build`] has returned false; until then
    /// iterations scan their segments.
    pub fn set(self, fields: Option<Arc<dyn IndexedFields>>) {
        *self.container.shards.fields.write().unwrap_or_else(PoisonError::into_inner) = fields.clone();
        for segment in (0..self.container.shards.count()).map(|segment| Segment(segment as u16)) {
            let before = self.container.shards.update(segment, |table| table.set_fields(fields.clone()));
            // Without the lock.
            drop(before);
        }
    }

    /// Returns the indexed fields.
    pub fn fields(self) -> Option<Arc<dyn IndexedFields>> {
        self.container.shards.fields.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Indexes some of the entries that were here before the fields were set. Returns whether there are more.
    pub fn build(self) -> bool {
        let is_unbuilt = |segment: &Segment| {
            self.container.shards.lock(*segment).field_index().is_some_and(|index| !index.is_built())
        };
        let mut segments = (0..self.container.shards.count()).map(|segment| Segment(segment as u16));
        match segments.find(is_unbuilt) {
            Some(segment) => {
                self.container.shards.update(segment, |table| table.build_index(BUILD_STEP_MAX));
                true
            }
            None => false,
        }
    }

    /// Returns the lookup of a transform or reduction; `None` if it cannot be answered by an index.
    pub fn lookup(self, function: &str, arguments: &[u8]) -> Option<IndexLookup> {
        let fields = self.fields()?;
        let lookup = fields.lookup(function, arguments)?;
        Some(IndexLookup::new(fields, lookup))
    }

    /// Injects a bug.
    #[cfg(feature = "injected-bugs")]
    pub fn inject_bug(self, bug: crate::InjectedBug) {
        let shards = &self.container.shards;
        for segment in (0..shards.count()).map(|segment| Segment(segment as u16)) {
            shards.update(segment, |table| table.inject_bug(bug));
        }
    }

    /// Passes on the entries of a segment that a lookup finds, or all; each one that is present throughout exactly once. `give` is
    /// called under the lock: it must not call the container.
    ///
    /// # Errors
    ///
    /// As for [`Container::chunk`]; `give` may have been called before.
    pub fn visit(
        self,
        segment: Segment,
        lookup: Option<&IndexLookup>,
        now: Time,
        mut give: impl FnMut(Visited<'_>),
    ) -> Result<(), SegmentGone> {
        let mut cursor = Cursor::START;
        let mut walk = self.container.begin_walk(segment, &mut cursor, lookup)?;
        let mut next = Some(cursor);
        while let Some(at) = next {
            next = self.container.walk_on(segment, at, &mut walk, now, &mut give)?;
        }
        Ok(())
    }
}

/// An iteration through a segment: over candidates, or over all entries.
pub(crate) enum SegmentWalk {
    Scan,
    Candidates(vec::IntoIter<u32>),
}

impl Container {
    /// Returns its indexes by fields.
    pub fn indexes(&self) -> FieldIndexes<'_> {
        FieldIndexes { container: self }
    }

    /// Begins or continues an iteration. The candidates and a scan have the same cursors, so that each part of an iteration may use
    /// either.
    pub(crate) fn begin_walk(
        &self,
        segment: Segment,
        cursor: &mut Cursor,
        lookup: Option<&IndexLookup>,
    ) -> Result<SegmentWalk, SegmentGone> {
        let table = self.shards.lock(segment);
        if !table.begin_walk(cursor) {
            return Err(SegmentGone(segment));
        }
        let Some(index) = table.field_index() else { return Ok(SegmentWalk::Scan) };
        let lookup = lookup.filter(|lookup| index.is_of(&lookup.fields));
        let found = lookup.and_then(|lookup| index.candidates(&lookup.lookup, cursor.slot));
        drop(table);
        self.statistics().note_walk(found.is_some());
        Ok(found.map_or(SegmentWalk::Scan, |slots| SegmentWalk::Candidates(slots.into_iter())))
    }

    /// Visits at most one entry, and returns the position after it; `None` at the end.
    pub(crate) fn walk_on(
        &self,
        segment: Segment,
        cursor: Cursor,
        walk: &mut SegmentWalk,
        now: Time,
        give: impl FnMut(Visited<'_>),
    ) -> Result<Option<Cursor>, SegmentGone> {
        match walk {
            SegmentWalk::Scan => {
                let limits = ChunkLimits { entries_max: 1, bytes_max: usize::MAX };
                self.visit(segment, cursor, limits, now, give)
            }
            SegmentWalk::Candidates(slots) => {
                let Some(slot) = slots.next() else { return Ok(None) };
                let at = Cursor { slot, ..cursor };
                let is_here = self.shards.lock(segment).visit_slot(at, now, give);
                if is_here { Ok(Some(Cursor { slot: slot + 1, ..at })) } else { Err(SegmentGone(segment)) }
            }
        }
    }
}
