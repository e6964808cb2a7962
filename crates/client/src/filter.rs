use bytes::Bytes;
use consort_encoding::{Encode, Raw};
use consort_hotrod::ops::listener::{Factory, KEY_PREFIX, VALUE_PREFIX};

use crate::cache::Cache;
use crate::error::ClientError;

/// A server-side filter of encoded keys and values, by name, with parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Factory);

/// The count of parameters is one byte.
pub(crate) const PARAMS_MAX: usize = 255;

impl Filter {
    /// Selects entries of a cache whose key begins with this. Consort's servers only.
    ///
    /// ```compile_fail
    /// # fn example(client: consort_client::Client) {
    /// let names = client.cache::<String, u32>("names");
    /// let filter = consort_client::Filter::key_prefix(&names, "A");
    /// # }
    /// ```
    ///
    /// ```no_run
    /// # async fn example(client: consort_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use consort_client::{Filter, Postcard, Raw};
    ///
    /// let names = client.encoded::<String, u32, _, _>("names", Raw, Postcard);
    /// let mut begins_with_a = names.entries().filter(Filter::key_prefix(&names, "A")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the prefix cannot be encoded.
    pub fn key_prefix<K, V, KE, VE, Q: ?Sized>(
        cache: &Cache<K, V, KE, VE>,
        prefix: &Q,
    ) -> Result<Self, ClientError>
    where
        KE: EncodePrefix<Q>,
    {
        Ok(Self::named(KEY_PREFIX, [cache.codec.key(prefix)?.into_bytes()]))
    }

    /// Selects entries of a cache whose value begins with this. A listener gets a change if the previous or new value matches,
    /// or the previous one is unknown. Consort's servers only.
    ///
    /// # Errors
    ///
    /// If the prefix cannot be encoded.
    pub fn value_prefix<K, V, KE, VE, W: ?Sized>(
        cache: &Cache<K, V, KE, VE>,
        prefix: &W,
    ) -> Result<Self, ClientError>
    where
        VE: EncodePrefix<W>,
    {
        Ok(Self::named(VALUE_PREFIX, [cache.codec.value(prefix)?.into_bytes()]))
    }

    /// Selects by a named filter with its first 255 parameters; without it on the servers, the operation fails.
    pub fn named(name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        Self(Factory { name: name.into(), params: params.into_iter().take(PARAMS_MAX).collect() })
    }

    pub(crate) fn into_factory(self) -> Factory {
        self.0
    }
}

/// An encoding that keeps beginnings: a text that begins with another one has bytes that begin with those of the other one.
/// Encodings that put a length first, like [`Postcard`](crate::Postcard), do not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not keep beginnings: encoded texts do not begin with the bytes of an encoded prefix",
    note = "use a handle with `Raw` keys or values, for example `Client::encoded(name, Raw, Postcard)`"
)]
pub trait EncodePrefix<Q: ?Sized>: Encode<Q> {}

impl<Q: ?Sized> EncodePrefix<Q> for Raw where Self: Encode<Q> {}
