//! The JGroups 5.5 encoding (facts sections 1 to 8): primitives, addresses, messages, headers, objects.

use crate::Object;

/// Length of a compressed long (facts 1.1).
pub fn compressed_long_length(value: i64) -> usize {
    1 + (8 - (value.leading_zeros() / 8) as usize)
}

/// Length of an ObjectMessage's payload (facts 6.3).
pub fn object_length(_object: &Object) -> usize {
    0
}
