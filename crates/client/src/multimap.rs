//! Multimaps: caches with several values per key (facts section 2.15).

use std::fmt;

use bytes::Bytes;
use consort_encoding::{Decode, Encode, EncodeBorrowed, Postcard};
use consort_hotrod::ops::map::Assignment;
use consort_hotrod::ops::multimap::{Action, Request, Response};
use consort_hotrod::{Expiration, Flags, RequestBody, ResponseBody, Status};

use crate::cache::{Cache, Entry, entry};
use crate::client::Client;
use crate::error::ClientError;
use crate::operation::Answer;

/// A cache with several values per key; cheap to clone.
///
/// Values are compared by their bytes and never expire. Without duplicates, a key's values are a set without an order. Do not mix
/// it with a plain cache: each fails on values written by the other.
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
    /// Returns a multimap of serde values; without the cache, the first operation fails.
    pub fn multimap<K, V>(&self, name: &str) -> Multimap<K, V> {
        self.cache(name).as_multimap()
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns the cache as a multimap, with this handle's encodings and timeout, without its lifetime.
    pub fn as_multimap(&self) -> Multimap<K, V, KE, VE> {
        Multimap { cache: self.clone(), allows_duplicates: false }
    }
}

impl<K, V, KE: Clone, VE: Clone> Multimap<K, V, KE, VE> {
    /// Returns a handle that allows duplicates, in put order; with servers before 4.0 operations fail with
    /// [`ClientError::Unsupported`].
    #[must_use]
    pub fn with_duplicates(&self) -> Self {
        Self { cache: self.cache.clone(), allows_duplicates: true }
    }
}

impl<K, V, KE, VE> Multimap<K, V, KE, VE> {
    /// Returns the cache's name.
    pub fn name(&self) -> &str {
        self.cache.name()
    }

    /// Returns whether a value can occur more than once.
    pub const fn allows_duplicates(&self) -> bool {
        self.allows_duplicates
    }

    async fn ask(&self, action: Action) -> Result<Answer, ClientError> {
        let request = Request { action, allows_duplicates: self.allows_duplicates };
        self.cache.ask(RequestBody::Multimap(request), Flags::NONE, None).await
    }

    async fn is(&self, action: Action) -> Result<bool, ClientError> {
        let answer = self.ask(action).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Is(is)) => Ok(is),
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

    fn assignment<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Assignment, ClientError>
    where
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

    /// Returns the values of a key; empty if it has none.
    pub async fn get<Q: ?Sized>(&self, key: &Q) -> Result<Vec<V>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let answer = self.ask(Action::Get(self.cache.key(key)?)).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Values(values)) => self.decoded(values),
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(Vec::new()),
            _ => Err(answer.unexpected()),
        }
    }

    /// Returns the values of a key with their version, which changes with each of them.
    pub async fn get_with_metadata<Q: ?Sized>(&self, key: &Q) -> Result<Option<Entry<Vec<V>>>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
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

    /// Adds a value to a key.
    pub async fn put<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<(), ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let answer = self.ask(Action::Put(self.assignment(key, value)?)).await?;
        if answer.status == Status::Success { Ok(()) } else { Err(answer.unexpected()) }
    }

    /// Removes all values of a key. Returns whether it had any.
    pub async fn remove<Q: ?Sized>(&self, key: &Q) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        self.is(Action::RemoveKey(self.cache.key(key)?)).await
    }

    /// Removes a value of a key, with its duplicates. Returns whether the key had it.
    pub async fn remove_entry<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.is(Action::RemoveEntry(self.assignment(key, value)?)).await
    }

    /// Returns whether a key has values.
    pub async fn contains_key<Q: ?Sized>(&self, key: &Q) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        self.is(Action::ContainsKey(self.cache.key(key)?)).await
    }

    /// Returns whether any key has this value; the servers scan all values.
    pub async fn contains_value<W: ?Sized>(&self, value: &W) -> Result<bool, ClientError>
    where
        VE: EncodeBorrowed<V, W>,
    {
        self.is(Action::ContainsValue(Expiration::INFINITE, self.cache.value(value)?)).await
    }

    /// Returns whether a key has this value.
    pub async fn contains_entry<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.is(Action::ContainsEntry(self.assignment(key, value)?)).await
    }

    /// Returns the number of values of all keys, which are scanned.
    pub async fn size(&self) -> Result<u64, ClientError> {
        let answer = self.ask(Action::Size).await?;
        match answer.body {
            ResponseBody::Multimap(Response::Size(size)) => Ok(size),
            _ => Err(answer.unexpected()),
        }
    }
}
