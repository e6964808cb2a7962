//! The index of a segment by fields of its entries. It changes with each entry under the segment's lock, in the functions of
//! [`Table`](super::table::Table) through which all writes, transfers, loads, expirations and evictions pass.
//!
//! The index proposes candidates: entries that may match. The reader evaluates its condition on each, so that only a missing
//! candidate can make a result wrong. Entries whose fields are unknown are candidates of each lookup: those whose values only the
//! store has, and those with too many values.

mod lookup;
mod reader;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeSet, btree_set};
use std::sync::Arc;

pub use lookup::{FieldLookup, IndexLookup};
pub use reader::FieldIndexes;

pub use value::{FIELD_VALUE_BYTES, FieldValues, VALUES_PER_ENTRY_MAX};

use super::item::Item;
use super::slab::{self, Next, Slab};
use super::stored::Stored;
use crate::catch_panic::catch_panic;
use value::FieldValue;

/// Candidates of a lookup in a segment. The iteration scans a segment with more: candidates are collected anew for each part of an
/// iteration, under the segment's lock.
pub const CANDIDATES_MAX: usize = 8_192;

/// Steps of a lookup in a segment, under its lock: some hundred microseconds. A query with more conditions scans.
pub const LOOKUP_STEPS_MAX: usize = 8 * CANDIDATES_MAX;

/// Bytes of a value of an entry in the index: a key of 32 bytes in a node that is two thirds full.
pub const INDEX_ENTRY_BYTES: u64 = 48;

/// The indexed fields of a cache's entries. The same entry must always have the same fields.
pub trait IndexedFields: Send + Sync {
    /// Adds the values of the entry's fields. Returns `None` if they are unknown.
    fn read(&self, key: &[u8], value: &[u8], values: &mut FieldValues) -> Option<()>;

    /// Returns a lookup that finds at least all entries for which this transform or reduction has a result; `None` if the index
    /// cannot answer it.
    fn lookup(&self, function: &str, arguments: &[u8]) -> Option<FieldLookup>;
}

/// A field's value in an entry, ordered by field and value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct IndexKey {
    field: u16,
    value: FieldValue,
    slot: u32,
}

pub(super) struct FieldIndex {
    fields: Arc<dyn IndexedFields>,
    keys: BTreeSet<IndexKey>,
    /// Slots of entries with unknown fields.
    unknown: BTreeSet<u32>,
    /// The first slot that is not indexed yet, of an index that came after its entries.
    unbuilt: Option<u32>,
    #[cfg(feature = "injected-bugs")]
    pub(super) injected_bug: Option<crate::InjectedBug>,
}

/// Entries that an index has, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct IndexSize {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

impl FieldIndex {
    /// The index of a segment with these entries; [`FieldIndex::build`] adds them.
    pub(super) fn new(fields: Arc<dyn IndexedFields>, is_empty: bool) -> Self {
        let unbuilt = (!is_empty).then_some(0);
        Self {
            fields,
            keys: BTreeSet::new(),
            unknown: BTreeSet::new(),
            unbuilt,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
        }
    }

    pub(super) fn emptied(&self) -> Self {
        Self {
            #[cfg(feature = "injected-bugs")]
            injected_bug: self.injected_bug,
            ..Self::new(self.fields.clone(), true)
        }
    }

    pub(super) fn size(&self) -> IndexSize {
        let entries = (self.keys.len() + self.unknown.len()) as u64;
        IndexSize { entries, bytes: entries * INDEX_ENTRY_BYTES }
    }

    pub(super) fn is_of(&self, fields: &Arc<dyn IndexedFields>) -> bool {
        Arc::ptr_eq(&self.fields, fields)
    }

    pub(super) fn is_built(&self) -> bool {
        self.unbuilt.is_none()
    }

    /// Changes the entry of a slot.
    pub(super) fn change(&mut self, slot: u32, before: Option<&Item>, after: Option<&Item>) {
        if self.has_bug_of_replacements() && before.is_some() && after.is_some() {
            return;
        }
        let fields = |item: Option<&Item>| item.map(|item| read(&*self.fields, item));
        let (before, after) = (fields(before), fields(after));
        if before == after {
            return;
        }
        match before {
            Some(Some(values)) => values.iter().for_each(|(field, value)| {
                self.keys.remove(&IndexKey { field, value, slot });
            }),
            Some(None) => drop(self.unknown.remove(&slot)),
            None => {}
        }
        self.add(slot, after);
    }

    #[cfg(feature = "injected-bugs")]
    fn has_bug_of_replacements(&self) -> bool {
        self.injected_bug == Some(crate::InjectedBug::ReplacedNotIndexed)
    }

    #[cfg(not(feature = "injected-bugs"))]
    #[inline(always)]
    const fn has_bug_of_replacements(&self) -> bool {
        false
    }

    fn add(&mut self, slot: u32, after: Option<Option<FieldValues>>) {
        match after {
            Some(Some(values)) => {
                self.keys.extend(values.iter().map(|(field, value)| IndexKey { field, value, slot }));
            }
            Some(None) => drop(self.unknown.insert(slot)),
            None => {}
        }
    }

    /// Adds at most this many of the entries that were here before the index. Entries that changed since are added again, which
    /// changes nothing.
    pub(super) fn build(&mut self, slab: &Slab<Stored>, entries_max: usize) {
        let Some(mut at) = self.unbuilt else { return };
        for _ in 0..entries_max {
            match slab.next_occupied(at, slab::pages_after(at, BUILD_PAGES_MAX)) {
                Next::End => {
                    self.unbuilt = None;
                    return;
                }
                Next::More(slot) => at = slot,
                Next::Slot(slot) => {
                    let values = slab.get(slot).map(|stored| read(&*self.fields, &stored.item));
                    self.add(slot, values);
                    at = slot + 1;
                }
            }
        }
        self.unbuilt = Some(at);
    }

    /// The slots from this one on that may match, in order; `None` if the index is not complete, or they are too many.
    pub(super) fn candidates(&self, lookup: &FieldLookup, from: u32) -> Option<Vec<u32>> {
        if !self.is_built() {
            return None;
        }
        let mut slots: Vec<u32> = self.unknown.range(from..).copied().take(CANDIDATES_MAX + 1).collect();
        let known_max = CANDIDATES_MAX.checked_sub(slots.len())?;
        let mut steps = LOOKUP_STEPS_MAX;
        slots.extend(lookup.slots(self, known_max, &mut steps)?.into_iter().filter(|slot| *slot >= from));
        slots.sort_unstable();
        slots.dedup();
        Some(slots)
    }

    fn range(&self, field: u16, from: FieldValue, to: FieldValue) -> btree_set::Range<'_, IndexKey> {
        let (from, to) =
            (IndexKey { field, value: from, slot: 0 }, IndexKey { field, value: to, slot: u32::MAX });
        // A range that ends before it begins is a panic of the tree.
        if from <= to { self.keys.range(from..=to) } else { self.keys.range(to..to) }
    }
}

/// Pages of slots of one step of a build.
const BUILD_PAGES_MAX: u32 = 32;

/// `None` if the values are unknown.
fn read(fields: &dyn IndexedFields, item: &Item) -> Option<FieldValues> {
    if item.is_passive() {
        return None;
    }
    let mut values = FieldValues::default();
    // A function that panics leaves the entry a candidate of each lookup.
    catch_panic(|| fields.read(item.key(), item.value_bytes(), &mut values)).ok().flatten()?;
    values.complete()
}
