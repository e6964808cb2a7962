//! The indexed fields of values: the value itself, its length, and classes of values, some of which the index does not know.

use std::sync::Arc;

use consort_grid::{Container, FieldLookup, FieldValues, IndexedFields};

pub(super) const VALUE: u16 = 0;
pub(super) const LENGTH: u16 = 1;
pub(super) const CLASS: u16 = 2;

const CLASSES: u8 = 4;

/// Of the values, one in so many has unknown fields.
const UNKNOWN: u32 = 16;

struct Fields;

fn sum(value: &[u8]) -> u32 {
    value.iter().map(|byte| u32::from(*byte)).sum()
}

pub(super) fn class(value: &[u8]) -> u8 {
    (sum(value) % u32::from(CLASSES)) as u8
}

impl IndexedFields for Fields {
    fn read(&self, _: &[u8], value: &[u8], values: &mut FieldValues) -> Option<()> {
        if sum(value).is_multiple_of(UNKNOWN) {
            return None;
        }
        values.add(VALUE, value);
        values.add(LENGTH, &(value.len() as u32).to_be_bytes());
        values.add(CLASS, &[class(value)]);
        Some(())
    }

    fn lookup(&self, _: &str, _: &[u8]) -> Option<FieldLookup> {
        None
    }
}

pub(super) fn index(container: &Container) {
    container.indexes().set(Some(Arc::new(Fields)));
}
