use std::sync::Arc;

use super::value::FieldValue;
use super::{FieldIndex, IndexedFields};

/// Steps to find the beginning of a range: a step is a slot of its result.
const RANGE_STEPS: usize = 16;

/// A search in an index. It may find more than it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldLookup(Search);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Search {
    Range {
        field: u16,
        from: FieldValue,
        to: FieldValue,
    },
    /// The most selective one is used.
    All(Vec<FieldLookup>),
    Any(Vec<FieldLookup>),
}

impl FieldLookup {
    /// Entries with this value.
    pub fn equal(field: u16, value: &[u8]) -> Self {
        let value = FieldValue::new(value);
        Self(Search::Range { field, from: value, to: value })
    }

    /// Entries with a value between these.
    pub fn between(field: u16, from: &[u8], to: &[u8]) -> Self {
        Self(Search::Range { field, from: FieldValue::lowest(from), to: FieldValue::highest(to) })
    }

    /// Entries with a value that is not less than `from` and begins with `prefix`, or precedes all that do.
    pub fn up_to_prefix(field: u16, from: &[u8], prefix: &[u8]) -> Self {
        let (from, to) = (FieldValue::lowest(from), FieldValue::highest_with_prefix(prefix));
        Self(Search::Range { field, from, to })
    }

    /// Entries that each of these finds; not empty.
    pub fn all(all: Vec<Self>) -> Self {
        Self(Search::All(all))
    }

    /// Entries that one of these finds.
    pub fn any(any: Vec<Self>) -> Self {
        Self(Search::Any(any))
    }

    #[cfg(test)]
    pub(super) fn is_conjunction(&self) -> bool {
        matches!(self.0, Search::All(_))
    }

    /// The slots of a search, perhaps repeatedly; `None` if they are more than the limit, or take more steps than are left.
    pub(super) fn slots(&self, index: &FieldIndex, limit: usize, steps: &mut usize) -> Option<Vec<u32>> {
        match &self.0 {
            Search::Range { field, from, to } => {
                let mut slots = Vec::new();
                *steps = steps.checked_sub(RANGE_STEPS)?;
                for key in index.range(*field, *from, *to) {
                    if slots.len() == limit {
                        return None;
                    }
                    *steps = steps.checked_sub(1)?;
                    slots.push(key.slot);
                }
                Some(slots)
            }
            Search::All(all) => {
                let mut least: Option<Vec<u32>> = None;
                for one in all {
                    // A search with more slots than the best one so far ends early.
                    let limit = least.as_ref().map_or(limit, Vec::len);
                    least = one.slots(index, limit, steps).or(least);
                }
                least
            }
            Search::Any(any) => {
                let mut slots = Vec::new();
                for one in any {
                    let left = limit.checked_sub(slots.len())?;
                    slots.extend(one.slots(index, left, steps)?);
                }
                Some(slots)
            }
        }
    }
}

/// A lookup in the indexes of certain fields.
#[derive(Clone)]
pub struct IndexLookup {
    pub(super) fields: Arc<dyn IndexedFields>,
    pub(super) lookup: FieldLookup,
}

impl IndexLookup {
    /// Indexes of other fields do not answer it.
    pub fn new(fields: Arc<dyn IndexedFields>, lookup: FieldLookup) -> Self {
        Self { fields, lookup }
    }
}

impl std::fmt::Debug for IndexLookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lookup.fmt(f)
    }
}
