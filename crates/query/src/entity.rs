//! Wrapped entities: a type by its name or number, and a message.

use consort_protostream::wire::{MESSAGE, Raw, TYPE_ID, TYPE_NAME, field};

#[derive(Clone, Copy)]
pub(crate) enum EntityType<'v> {
    Name(&'v [u8]),
    Id(u64),
}

impl EntityType<'_> {
    pub(crate) fn is(self, name: &str, id: Option<u32>) -> bool {
        match self {
            Self::Name(own) => own == name.as_bytes(),
            Self::Id(own) => id.is_some_and(|id| u64::from(id) == own),
        }
    }
}

/// Returns the type and the message of a wrapped entity; `None` for another value.
pub(crate) fn entity(mut value: &[u8]) -> Option<(EntityType<'_>, &[u8])> {
    let (mut entity, mut message) = (None, None);
    while !value.is_empty() {
        match field(&mut value)? {
            (TYPE_NAME, Raw::Length(name)) => entity = Some(EntityType::Name(name)),
            (TYPE_ID, Raw::Varint(id)) => entity = Some(EntityType::Id(id)),
            (MESSAGE, Raw::Length(bytes)) => message = Some(bytes),
            _ => return None,
        }
    }
    entity.zip(message)
}
