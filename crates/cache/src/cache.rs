//! A handle of a cache: every operation on one key.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Flags, Lifetime, Limit, Lookup, MemoryBound,
    OperationError, Outcome, ReadFrom, Stored, Topology, Version, Write, Written,
};

use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::open_cache::OpenCache;
use crate::operation::{self, Operation};
use crate::options::CacheOptions;
use consort_encoding::{Decode, Encode, Encoded, Postcard, Raw};

/// A cache of raw bytes.
pub type RawCache = Cache<Bytes, Bytes, Raw, Raw>;

/// An entry with its metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// The version of its write.
    pub version: Version,
    /// Its lifespan and max-idle time.
    pub lifetime: Lifetime,
    /// Time since it was written.
    pub age: Duration,
    /// Time since it was last used, if it has a max-idle time; else its age.
    pub idle: Duration,
}

/// A handle of a cache that is open on this member. Cheap to clone. It does not keep the manager open.
///
/// Methods take keys and values in borrowed form, like std's maps: bytes as slices, strings as `&str`. A write is
/// complete when every owner has it ([guarantees](crate#guarantees)). Dropping a future does not undo the
/// operation that it has begun.
///
/// # Errors
///
/// Operations on keys return [`CacheError::Encoding`] if a key or value cannot be encoded or decoded,
/// [`CacheError::Closed`] once the cache or the manager is closed, and else [`CacheError::Operation`]. Each
/// [`OperationError`] says whether the operation may have changed the key.
pub struct Cache<K, V, KE = Postcard, VE = Postcard> {
    pub(crate) handler: Arc<GridHandler>,
    pub(crate) opened: Arc<OpenCache>,
    keys: KE,
    values: VE,
    options: CacheOptions,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V, KE: Clone, VE: Clone> Clone for Cache<K, V, KE, VE> {
    fn clone(&self) -> Self {
        self.with_options(self.options)
    }
}

impl<K, V, KE, VE> fmt::Debug for Cache<K, V, KE, VE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cache {}", self.opened.config.name)
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn new(
        handler: Arc<GridHandler>,
        opened: Arc<OpenCache>,
        keys: KE,
        values: VE,
        options: CacheOptions,
    ) -> Self {
        Self { handler, opened, keys, values, options, types: PhantomData }
    }

    /// Returns the cache's name.
    pub fn name(&self) -> &str {
        &self.opened.config.name
    }

    /// Returns the configuration that all its members share.
    pub fn config(&self) -> &CacheConfig {
        &self.opened.config
    }

    /// Returns the topology that is installed here.
    pub fn topology(&self) -> Option<Topology> {
        self.opened.topology.borrow().clone()
    }

    /// Returns the number of entries in memory on this member, as primary or backup. Entries with values only in the
    /// store are not counted.
    pub fn local_len(&self) -> u64 {
        self.opened.container.len() - self.opened.container.statistics().passive_len()
    }

    /// Returns the number of entries on this member with values only in the store.
    pub fn passive_len(&self) -> u64 {
        self.opened.container.statistics().passive_len()
    }

    /// Returns the bytes that all entries take in this member's memory.
    pub fn local_bytes(&self) -> u64 {
        self.opened.container.bytes()
    }

    /// Returns the memory limit of the cache on this member.
    pub fn memory(&self) -> Option<MemoryBound> {
        self.opened.container.bound()
    }

    /// Changes the memory limit of the cache on this member, until the cache is opened again. Returns true if the
    /// cache was opened with a limit in the same unit and the new limit is not 0; else nothing is changed. Under a
    /// smaller limit the next writes evict entries, some thousand each.
    pub fn set_memory_limit(&self, limit: Limit) -> bool {
        !limit.is_zero() && self.opened.container.set_limit(limit)
    }

    /// Returns the options of this handle.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns a handle with other options.
    #[must_use]
    pub fn with_options(&self, options: CacheOptions) -> Self {
        Self {
            handler: self.handler.clone(),
            opened: self.opened.clone(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            options,
            types: PhantomData,
        }
    }

    /// Returns a handle whose operations have this timeout.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(CacheOptions { timeout, ..self.options })
    }

    /// Returns a handle that reads from these owners, also in iterations.
    #[must_use]
    pub fn with_read_from(&self, read_from: ReadFrom) -> Self {
        self.with_options(CacheOptions { read_from, ..self.options })
    }

    /// Returns a handle whose operations on keys have these flags and no others, so that [`Flags::NONE`] waits for
    /// all owners in a cache whose file says `mode="ASYNC"`. A flag that the cache's mode does not support fails with
    /// [`OperationError::Unsupported`] when it is used.
    #[must_use]
    pub fn with_flags(&self, flags: Flags) -> Self {
        self.with_options(CacheOptions { flags, ..self.options })
    }

    /// Returns a handle whose entries have this lifetime.
    #[must_use]
    pub fn with_lifetime(&self, lifetime: Lifetime) -> Self {
        self.with_options(CacheOptions { lifetime, ..self.options })
    }
}

impl<K, V, KE: Clone, VE> Cache<K, V, KE, VE> {
    pub(crate) fn key_encoding(&self) -> KE {
        self.keys.clone()
    }
}

impl<K, V, KE, VE: Clone> Cache<K, V, KE, VE> {
    pub(crate) fn value_encoding(&self) -> VE {
        self.values.clone()
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns an operation, which begins when it is polled.
    pub(crate) fn operation(&self, key: Bytes, action: Action) -> Operation<'_> {
        Operation::new(&self.handler, &self.opened, key, action, &self.options)
    }

    /// Returns the encoded key.
    pub(crate) fn key<'q, Q: ?Sized>(&self, key: &'q Q) -> Result<Encoded<'q>, CacheError>
    where
        KE: Encode<Q>,
    {
        Ok(self.keys.encode(key)?)
    }

    pub(crate) fn value<W: ?Sized>(&self, value: &W) -> Result<Bytes, CacheError>
    where
        VE: Encode<W>,
    {
        Ok(self.values.encode(value)?.into_bytes())
    }

    pub(crate) fn decoded(&self, value: Bytes) -> Result<V, CacheError>
    where
        VE: Decode<V>,
    {
        Ok(self.values.decode(value)?)
    }

    /// Looks up a key in this member's memory, if the options allow a local read.
    pub(crate) fn value_here(&self, key: &[u8]) -> Lookup<Bytes> {
        match self.options.read_from {
            ReadFrom::Nearest => self.opened.value_here(key, || self.handler.now()),
            ReadFrom::Primary => Lookup::NotLocal,
        }
    }

    fn entry(&self, stored: Stored) -> Result<Entry<V>, CacheError>
    where
        VE: Decode<V>,
    {
        let Stored { value, version, lifetime, age, idle } = stored;
        Ok(Entry { value: self.decoded(value)?, version, lifetime, age, idle })
    }

    async fn written(&self, key: Bytes, write: Write) -> Result<Written, CacheError> {
        match self.operation(key, Action::Write(write)).await? {
            Outcome::Written(written) => Ok(written),
            Outcome::Read(_) => Err(unexpected()),
        }
    }

    async fn read(&self, key: Bytes) -> Result<Option<Stored>, CacheError> {
        match self.operation(key, Action::Read(self.options.read_from)).await? {
            Outcome::Read(stored) => Ok(stored),
            Outcome::Written(_) => Err(unexpected()),
        }
    }

    async fn change<Q>(&self, key: &Q, condition: Condition, change: Change) -> Result<Written, CacheError>
    where
        Q: ?Sized,
        KE: Encode<Q>,
    {
        let key = self.key(key)?.into_bytes();
        self.written(key, Write { condition, change, wants_previous: false }).await
    }

    pub(crate) fn putting<W>(&self, value: &W) -> Result<Change, CacheError>
    where
        W: ?Sized,
        VE: Encode<W>,
    {
        Ok(Change::Put { value: self.value(value)?, lifetime: self.options.lifetime })
    }
}

impl RawCache {
    /// Returns a key's value, if it is in this member's memory and may be read there; [`Lookup::NotLocal`] says
    /// nothing about the key. Like [`Cache::get`] without waiting.
    #[inline]
    pub fn get_local(&self, key: &[u8]) -> Lookup<Bytes> {
        self.value_here(key)
    }

    /// Writes a key at once, if this member is its only owner and no listener needs an event: with a local cache, or
    /// a single member. Returns `None` without a change otherwise, or if the write would change nothing. Like
    /// [`Cache::write`] without waiting.
    pub fn try_write_local(&self, key: &[u8], write: Write) -> Option<Result<Written, CacheError>> {
        if self.options.flags != Flags::NONE {
            return None;
        }
        let written = operation::try_write_local(&self.handler, &self.opened, key, write)?;
        Some(written.map_err(CacheError::Operation))
    }

    /// Prefetches these keys, which are looked up next, at most [`PREFETCH_MAX`](crate::PREFETCH_MAX) of them: the CPU
    /// fetches their memory for all at once. There is no other effect.
    pub fn prefetch<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.opened.prefetch(keys);
    }
}

/// The error for a response of another kind: a node responds to a write with its result.
fn unexpected() -> CacheError {
    CacheError::Operation(OperationError::Uncertain)
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns a key's value. On an owner this is a lookup in memory, without the network.
    pub async fn get<Q>(&self, key: &Q) -> Result<Option<V>, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?;
        let value = match self.value_here(key.as_slice()) {
            Lookup::Hit(value) => Some(value),
            Lookup::Miss => None,
            Lookup::NotLocal => self.read(key.into_bytes()).await?.map(|stored| stored.value),
        };
        value.map(|value| self.decoded(value)).transpose()
    }

    /// Returns a key's value with its version, lifetime and age.
    pub async fn get_with_metadata<Q>(&self, key: &Q) -> Result<Option<Entry<V>>, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?;
        let now = self.handler.now();
        let here = match self.options.read_from {
            ReadFrom::Nearest => self.opened.entry_here(key.as_slice(), || now),
            ReadFrom::Primary => Lookup::NotLocal,
        };
        match here {
            Lookup::Hit(entry) => Ok(Some(Entry {
                age: now.since(entry.created),
                idle: now.since(entry.last_used),
                value: self.decoded(entry.value)?,
                version: entry.version,
                lifetime: entry.lifetime,
            })),
            Lookup::Miss => Ok(None),
            Lookup::NotLocal => {
                let stored = self.read(key.into_bytes()).await?;
                stored.map(|stored| self.entry(stored)).transpose()
            }
        }
    }

    /// Returns whether a key has a value.
    pub async fn contains<Q>(&self, key: &Q) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        let key = self.key(key)?;
        match self.value_here(key.as_slice()) {
            Lookup::Hit(_) => Ok(true),
            Lookup::Miss => Ok(false),
            Lookup::NotLocal => {
                // The check does not need the transfer of a large value.
                let options = CacheOptions { response_bytes_max: 0, ..self.options };
                let read = Action::Read(options.read_from);
                match Operation::new(&self.handler, &self.opened, key.into_bytes(), read, &options).await {
                    Ok(Outcome::Read(stored)) => Ok(stored.is_some()),
                    Err(OperationError::LargeResponse { .. }) => Ok(true),
                    Ok(Outcome::Written(_)) => Err(unexpected()),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Sets a key's value.
    pub async fn put<Q, W>(&self, key: &Q, value: &W) -> Result<(), CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = self.putting(value)?;
        self.change(key, Condition::Always, change).await.map(drop)
    }

    /// Sets a key's value with a lifetime.
    pub async fn put_with<Q, W>(&self, key: &Q, value: &W, lifetime: Lifetime) -> Result<(), CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = Change::Put { value: self.value(value)?, lifetime };
        self.change(key, Condition::Always, change).await.map(drop)
    }

    /// Sets a key's value and returns the previous one.
    pub async fn swap<Q, W>(&self, key: &Q, value: &W) -> Result<Option<V>, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W> + Decode<V>,
    {
        let change = self.putting(value)?;
        let key = self.key(key)?.into_bytes();
        let write = Write { condition: Condition::Always, change, wants_previous: true };
        let written = self.written(key, write).await?;
        written.previous.map(|stored| self.decoded(stored.value)).transpose()
    }

    /// Sets a key's value if it has none. Returns whether it had none.
    pub async fn put_if_absent<Q, W>(&self, key: &Q, value: &W) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Absent, change).await?.is_done)
    }

    /// Caches a value from another source, such as a database, if the key has none, without waiting for other
    /// members. In a cache of [`CacheMode::Invalidation`] the entry is this member's alone, and does not invalidate
    /// the others'. If another member writes the key between the read from the source and this call, the call does
    /// not detect that. Returns whether the key had no value.
    pub async fn put_for_external_read<Q, W>(&self, key: &Q, value: &W) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = self.putting(value)?;
        let key = self.key(key)?.into_bytes();
        let is_own = self.config().mode == CacheMode::Invalidation;
        let flags = self.options.flags | if is_own { Flags::LOCAL } else { Flags::ASYNC };
        let options = CacheOptions { flags, ..self.options };
        let write = Write { condition: Condition::Absent, change, wants_previous: false };
        let operation = Operation::new(&self.handler, &self.opened, key, Action::Write(write), &options);
        match operation.await? {
            Outcome::Written(written) => Ok(written.is_done),
            Outcome::Read(_) => Err(unexpected()),
        }
    }

    /// Sets a key's value if it has one. Returns whether it had.
    pub async fn replace<Q, W>(&self, key: &Q, value: &W) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Present, change).await?.is_done)
    }

    /// Replaces a key's value if it is the expected one, compared by bytes. Returns whether it was.
    pub async fn replace_if_value<Q, W>(&self, key: &Q, expected: &W, value: &W) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let (condition, change) = (Condition::Value(self.value(expected)?), self.putting(value)?);
        Ok(self.change(key, condition, change).await?.is_done)
    }

    /// Replaces a key's value if its entry has this version. Returns whether it had.
    pub async fn replace_if_version<Q, W>(
        &self,
        key: &Q,
        version: Version,
        value: &W,
    ) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Version(version), change).await?.is_done)
    }

    /// Removes a key. Returns whether it had a value.
    pub async fn remove<Q>(&self, key: &Q) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        Ok(self.change(key, Condition::Always, Change::Remove).await?.was_present)
    }

    /// Removes a key and returns its value.
    pub async fn take<Q>(&self, key: &Q) -> Result<Option<V>, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?.into_bytes();
        let write = Write { condition: Condition::Always, change: Change::Remove, wants_previous: true };
        let written = self.written(key, write).await?;
        written.previous.map(|stored| self.decoded(stored.value)).transpose()
    }

    /// Removes a key if its value is the expected one, compared by bytes. Returns whether it was.
    pub async fn remove_if_value<Q, W>(&self, key: &Q, expected: &W) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let condition = Condition::Value(self.value(expected)?);
        Ok(self.change(key, condition, Change::Remove).await?.is_done)
    }

    /// Removes a key if its entry has this version. Returns whether it had.
    pub async fn remove_if_version<Q>(&self, key: &Q, version: Version) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        Ok(self.change(key, Condition::Version(version), Change::Remove).await?.is_done)
    }

    /// Writes encoded bytes and returns the complete result, for programs that forward requests of clients.
    pub async fn write(&self, key: Bytes, write: Write) -> Result<Written, CacheError> {
        self.written(key, write).await
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) async fn exchange(
        &self,
        key: Bytes,
        condition: Condition,
        change: Change,
    ) -> Result<Written, CacheError> {
        self.written(key, Write { condition, change, wants_previous: true }).await
    }

    pub(crate) fn entry_of(&self, stored: Stored) -> Result<Entry<V>, CacheError>
    where
        VE: Decode<V>,
    {
        self.entry(stored)
    }
}
