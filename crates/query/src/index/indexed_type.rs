use std::sync::Arc;

use crate::field_reader::FieldReader;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct IndexedType {
    pub(super) name: Arc<str>,
    pub(super) id: Option<u32>,
    pub(super) reader: FieldReader,
    /// Whether each field has at most one value in an entity.
    pub(super) is_single: Vec<bool>,
    /// The number of its first field.
    pub(super) first: u16,
}
