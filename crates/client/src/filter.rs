//! Filters of iterations and listeners, executed by the servers.

use bytes::Bytes;
use consort_hotrod::ops::listener::{Factory, KEY_PREFIX, VALUE_PREFIX};

/// A filter known to the servers by name, with its parameters. It works on the bytes of keys and values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Factory);

/// Maximum number of parameters of a filter or converter: the count is one byte.
pub(crate) const PARAMS_MAX: usize = 255;

impl Filter {
    /// Entries whose encoded key begins with these bytes. Only Consort's servers have this filter.
    pub fn key_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(KEY_PREFIX, [prefix.into()])
    }

    /// Entries whose encoded value begins with these bytes. A listener receives a change if the previous or
    /// the new value matches, or the previous value is unknown. Only Consort's servers have this filter.
    pub fn value_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(VALUE_PREFIX, [prefix.into()])
    }

    /// The filter of this name, with its first 255 parameters. The operation fails if the servers do not have
    /// it.
    pub fn named(name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        Self(Factory { name: name.into(), params: params.into_iter().take(PARAMS_MAX).collect() })
    }

    pub(crate) fn into_factory(self) -> Factory {
        self.0
    }
}
