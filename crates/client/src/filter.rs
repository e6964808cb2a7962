//! Which entries walks and listeners are of: what servers are told of it.

use bytes::Bytes;
use consort_hotrod::ops::listener::{Factory, KEY_PREFIX, VALUE_PREFIX};

/// A filter that servers have by name, with what it is given. It works on keys and values as their bytes, so that nothing
/// is sent which is not wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Factory);

/// Parameters of a filter or converter: as many as one byte can count.
pub(crate) const PARAMS_MAX: usize = 255;

impl Filter {
    /// Entries whose key begins with these bytes, as the key's encoding has them. Consort's servers have it.
    pub fn key_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(KEY_PREFIX, [prefix.into()])
    }

    /// Entries whose value begins with these bytes, as the value's encoding has them. A listener is told of a change if the
    /// value before it or the value after it does, or is not known any more. Consort's servers have it.
    pub fn value_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(VALUE_PREFIX, [prefix.into()])
    }

    /// What the servers know by this name: an error tells if they do not. The first 255 parameters are given to it.
    pub fn named(name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        Self(Factory { name: name.into(), params: params.into_iter().take(PARAMS_MAX).collect() })
    }

    pub(crate) fn into_factory(self) -> Factory {
        self.0
    }
}
