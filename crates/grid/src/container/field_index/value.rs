use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

/// Values of one entry in the index, of all its fields. An entry with more is a candidate of each lookup.
pub const VALUES_PER_ENTRY_MAX: usize = 256;

/// Bytes of a value in the index. Of a longer one the index has the first 18 and a hash.
pub const FIELD_VALUE_BYTES: usize = 26;

const HASH_BYTES: usize = size_of::<u64>();

/// Bytes of a value by which ranges are exact: nearly all numbers, dates and words.
pub(super) const PREFIX_BYTES: usize = FIELD_VALUE_BYTES - HASH_BYTES;

/// Colliding values of clients only add candidates.
const HASH: FixedState = FixedState::with_seed(0x0043_6f6e_736f_7274);

/// A value in a form of fixed size. Equal values have equal forms, and their prefixes have the order of the values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FieldValue([u8; FIELD_VALUE_BYTES]);

impl FieldValue {
    /// From bytes in the order of the values.
    pub(super) fn new(bytes: &[u8]) -> Self {
        if bytes.len() <= FIELD_VALUE_BYTES {
            return Self::padded(bytes, 0);
        }
        let mut hasher = HASH.build_hasher();
        hasher.write(bytes);
        let mut value = [0; FIELD_VALUE_BYTES];
        value[..PREFIX_BYTES].copy_from_slice(&bytes[..PREFIX_BYTES]);
        value[PREFIX_BYTES..].copy_from_slice(&hasher.finish().to_be_bytes());
        Self(value)
    }

    /// The lowest form of values that are not less than this one.
    pub(super) fn lowest(bytes: &[u8]) -> Self {
        Self::padded(&bytes[..bytes.len().min(PREFIX_BYTES)], 0)
    }

    /// The highest form of values that are not greater than this one, or begin with it.
    pub(super) fn highest(bytes: &[u8]) -> Self {
        let mut value = Self::lowest(bytes);
        value.0[PREFIX_BYTES..].fill(u8::MAX);
        value
    }

    /// The highest form of values that begin with this one.
    pub(super) fn highest_with_prefix(bytes: &[u8]) -> Self {
        Self::padded(&bytes[..bytes.len().min(PREFIX_BYTES)], u8::MAX)
    }

    fn padded(bytes: &[u8], padding: u8) -> Self {
        let mut value = [padding; FIELD_VALUE_BYTES];
        value[..bytes.len()].copy_from_slice(bytes);
        Self(value)
    }
}

/// The values of an entry's indexed fields.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FieldValues {
    values: SmallVec<[(u16, FieldValue); 4]>,
    is_overfull: bool,
}

impl FieldValues {
    /// Adds a value of a field, as bytes in the order of the values. A field can have several.
    pub fn add(&mut self, field: u16, value: &[u8]) {
        if self.values.len() < VALUES_PER_ENTRY_MAX {
            self.values.push((field, FieldValue::new(value)));
        } else {
            self.is_overfull = true;
        }
    }

    pub(super) fn complete(self) -> Option<Self> {
        (!self.is_overfull).then_some(self)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, FieldValue)> + '_ {
        self.values.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        // Long common beginnings, and zeros, which look like padding.
        (prop::collection::vec(0..3u8, 0..40), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(first, last)| [first, last].concat())
    }

    proptest! {
        #[test]
        fn values_lie_between_the_bounds_of_their_ranges(low in text(), value in text(), high in text()) {
            let form = FieldValue::new(&value);
            prop_assert_eq!(form, FieldValue::new(&value.clone()));
            if low <= value {
                prop_assert!(FieldValue::lowest(&low) <= form);
            }
            if value <= high {
                prop_assert!(form <= FieldValue::highest(&high));
            }
            if value.starts_with(&low) {
                prop_assert!(FieldValue::lowest(&low) <= form && form <= FieldValue::highest_with_prefix(&low));
            }
        }
    }

    #[test]
    fn numbers_have_exact_bounds_and_long_values_are_told_apart() {
        let form = |number: u64| FieldValue::new(&number.to_be_bytes());
        assert!(form(8) > FieldValue::highest(&7_u64.to_be_bytes()));
        assert!(form(6) < FieldValue::lowest(&7_u64.to_be_bytes()));
        let url = |page: u8| [&[b'x'; 100][..], &[page]].concat();
        assert_ne!(FieldValue::new(&url(1)), FieldValue::new(&url(2)));
    }

    #[test]
    fn an_entry_with_too_many_values_has_unknown_ones() {
        let mut values = FieldValues::default();
        (0..VALUES_PER_ENTRY_MAX).for_each(|_| values.add(1, b"x"));
        assert!(values.clone().complete().is_some());
        values.add(1, b"x");
        assert_eq!(values.complete(), None);
    }
}
