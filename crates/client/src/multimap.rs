//! Multimaps: a key has any number of values (facts section 2.15).

use std::borrow::Borrow;
use std::fmt;

use bytes::Bytes;
use consort_encoding::{Decode, Encode, Postcard};
use consort_hotrod::ops::map::Assignment;
use consort_hotrod::ops::multimap::{Action, Request, Response};
use consort_hotrod::{Expiration, Flags, RequestBody, ResponseBody, Status};

use crate::cache::{Cache, Entry, entry};
use crate::client::Client;
use crate::error::ClientError;
use crate::operation::Answer;

/// A cache whose keys have any number of values each. Cheap to clone, and to be used by many tasks at once.
///
/// A value is what its bytes are. Unless duplicates are allowed, a key has a value once, and the values of a key are a set:
/// their order says nothing. They live until they are removed. A cache is used as a multimap or as a cache; what was put
/// by the one is an error to the other.
pub struct Multimap<K, V, KE = Postcard, VE = Postcard> {
    cache: Cache<K, V, KE, VE>,
    allows_duplicates: bool,
}

impl<K, V, KE: Clone, VE: Clone> Clone for Multimap<K, V, KE, VE> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), allows_duplicates: self.allows_duplicates }
    }
}

impl<K, V, KE, VE> fmt::Debug for Multimap<K, V, KE, VE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "multimap {}", self.cache.name())
    }
}

impl Client {
    /// The cache of this name as a multimap of serde's values. Whether the servers have it shows with the first operation.
    pub fn multimap<K, V>(&self, name: &str) -> Multimap<K, V> {
        self.cache(name).as_multimap()
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// The same cache as a multimap, with this handle's encodings and deadline. Its lifetime is not heard there.
    pub fn as_multimap(&self) -> Multimap<K, V, KE, VE> {
        Multimap { cache: self.clone(), allows_duplicates: false }
    }
}

impl<K, V, KE: Clone, VE: Clone> Multimap<K, V, KE, VE> {
    /// A handle for which a key can have a value more than once, and then in the order in which it was put. Needs servers
    /// of 4.0; with others operations fail with [`ClientError::Unsupported`].
    #[must_use]
    pub fn with_duplicates(&self) -> Self {
        Self { cache: self.cache.clone(), allows_duplicates: true }
    }
}

impl<K, V, KE, VE> Multimap<K, V, KE, VE> {
    /// The cache's name.
    pub fn name(&self) -> &str {
        self.cache.name()
    }

    /// Whether a key can have a value more than once.
    pub const fn allows_duplicates(&self) -> bool {
        self.allows_duplicates
    }

    async fn ask(&self, action: Action) -> Result<Answer, ClientError> {
        let request = Request { action, allows_duplicates: self.allows_duplicates };
        self.cache.ask(RequestBody::Multimap(request), Flags::NONE, None).await
    }

    /// Asks something with yes or no.
    async fn is(&self, action: Action) -> Result<bool, ClientError> {
        let answer = self.ask(action).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Is(is)) => Ok(is),
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

    fn assignment<Q, W>(&self, key: &Q, value: &W) -> Result<Assignment, ClientError>
    where
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let (key, value) = (self.cache.key(key)?, self.cache.value(value)?);
        Ok(Assignment { key, expiration: Expiration::INFINITE, value })
    }

    fn decoded(&self, values: Vec<Bytes>) -> Result<Vec<V>, ClientError>
    where
        VE: Decode<V>,
    {
        values.into_iter().map(|value| self.cache.decoded(value)).collect()
    }

    /// A key's values; none if it has none.
    pub async fn get<Q>(&self, key: &Q) -> Result<Vec<V>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let answer = self.ask(Action::Get(self.cache.key(key)?)).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Values(values)) => self.decoded(values),
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(Vec::new()),
            _ => Err(answer.unexpected()),
        }
    }

    /// A key's values with their version, which changes with every change of one of them.
    pub async fn get_with_metadata<Q>(&self, key: &Q) -> Result<Option<Entry<Vec<V>>>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let answer = self.ask(Action::GetWithMetadata(self.cache.key(key)?)).await?;
        match answer.body {
            ResponseBody::Multimap(Response::WithMetadata(metadata, values)) => {
                Ok(Some(entry(metadata, self.decoded(values)?)))
            }
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(None),
            _ => Err(answer.unexpected()),
        }
    }

    /// A key has this value, too.
    pub async fn put<Q, W>(&self, key: &Q, value: &W) -> Result<(), ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let answer = self.ask(Action::Put(self.assignment(key, value)?)).await?;
        if answer.status == Status::Success { Ok(()) } else { Err(answer.unexpected()) }
    }

    /// Takes all of a key's values away. Whether it had any.
    pub async fn remove<Q>(&self, key: &Q) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        self.is(Action::RemoveKey(self.cache.key(key)?)).await
    }

    /// Takes this value of a key away, as often as it has it if duplicates are allowed. Whether it had it.
    pub async fn remove_entry<Q, W>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.is(Action::RemoveEntry(self.assignment(key, value)?)).await
    }

    /// Whether a key has a value.
    pub async fn contains_key<Q>(&self, key: &Q) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        self.is(Action::ContainsKey(self.cache.key(key)?)).await
    }

    /// Whether any key has this value. The servers look through all of them.
    pub async fn contains_value<W>(&self, value: &W) -> Result<bool, ClientError>
    where
        V: Borrow<W>,
        W: ?Sized,
        VE: Encode<W>,
    {
        self.is(Action::ContainsValue(Expiration::INFINITE, self.cache.value(value)?)).await
    }

    /// Whether a key has this value.
    pub async fn contains_entry<Q, W>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.is(Action::ContainsEntry(self.assignment(key, value)?)).await
    }

    /// How many values all keys have together. The servers look through all of them.
    pub async fn size(&self) -> Result<u64, ClientError> {
        let answer = self.ask(Action::Size).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Size(size)) => Ok(size),
            _ => Err(answer.unexpected()),
        }
    }
}
