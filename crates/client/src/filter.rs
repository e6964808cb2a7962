use bytes::Bytes;
use consort_hotrod::ops::listener::{Factory, KEY_PREFIX, VALUE_PREFIX};

/// A server-side filter of encoded keys and values, by name, with parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Factory);

/// The count of parameters is one byte.
pub(crate) const PARAMS_MAX: usize = 255;

impl Filter {
    /// Selects entries whose encoded key begins with these bytes. Consort's servers only.
    pub fn key_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(KEY_PREFIX, [prefix.into()])
    }

    /// Selects entries whose encoded value begins with these bytes. A listener gets a change if the previous or new value
    /// matches, or the previous one is unknown. Consort's servers only.
    pub fn value_prefix(prefix: impl Into<Bytes>) -> Self {
        Self::named(VALUE_PREFIX, [prefix.into()])
    }

    /// Selects by a named filter with its first 255 parameters; without it on the servers, the operation fails.
    pub fn named(name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        Self(Factory { name: name.into(), params: params.into_iter().take(PARAMS_MAX).collect() })
    }

    pub(crate) fn into_factory(self) -> Factory {
        self.0
    }
}
