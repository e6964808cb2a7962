use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{
    Codec, Decode, Encode, EncodeBorrowed, Encoded, Exchange, Postcard, Raw, VersionedValue,
    delegate_basic_cache,
};
#[cfg(doc)]
use consort_grid::OperationError;
use consort_grid::{
    CacheConfig, CacheMode, Change, Condition, Flags, Lifetime, Limit, Lookup, MemoryBound, ReadFrom, Stored,
    Topology, Version, Write, Written,
};

use crate::encoded::{EncodedCache, LockedWrites};
use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::open_cache::OpenCache;
use crate::operation;
use crate::options::CacheOptions;

/// A cache of raw bytes.
pub type RawCache = Cache<Bytes, Bytes, Raw, Raw>;

/// An entry with its metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// The write's version.
    pub version: Version,
    /// Lifespan and max-idle time.
    pub lifetime: Lifetime,
    /// Time since it was written.
    pub age: Duration,
    /// Time since the last use, if it has a max-idle time; else its age.
    pub idle: Duration,
}

impl<V> From<Entry<V>> for VersionedValue<V, Version> {
    fn from(entry: Entry<V>) -> Self {
        let Entry { value, version, lifetime, .. } = entry;
        Self { value, version, lifetime }
    }
}

/// A handle of a cache that is open on this member. Cheap to clone. It does not keep the manager open.
///
/// Methods take keys and values in borrowed form, like std's maps: bytes as slices, strings as `&str`. A
/// write is complete when every owner has it ([guarantees](crate#guarantees)). Dropping a future does not
/// undo its operation.
///
/// In a transactional cache ([`Cache::transaction`]), each write outside of a transaction locks its key first, and
/// fails with [`CacheError::Locked`] without a change if a transaction keeps the lock for 1 s.
///
/// # Errors
///
/// Operations on keys return [`CacheError::Encoding`] if a key or value cannot be encoded or decoded,
/// [`CacheError::Closed`] once the cache or the manager is closed, and else [`CacheError::Operation`]. Each
/// [`OperationError`] says whether the operation may have changed the key.
pub struct Cache<K, V, KE = Postcard, VE = Postcard> {
    pub(crate) encoded: EncodedCache,
    pub(crate) codec: Codec<K, V, KE, VE>,
}

impl<K, V, KE: Clone, VE: Clone> Clone for Cache<K, V, KE, VE> {
    fn clone(&self) -> Self {
        Self { encoded: self.encoded.clone(), codec: self.codec.clone() }
    }
}

impl<K, V, KE, VE> fmt::Debug for Cache<K, V, KE, VE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cache {}", self.name())
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn new(
        handler: Arc<GridHandler>,
        opened: Arc<OpenCache>,
        keys: KE,
        values: VE,
        options: CacheOptions,
        locked_writes: Option<Arc<dyn LockedWrites>>,
    ) -> Self {
        Self {
            encoded: EncodedCache { handler, opened, options, locked_writes },
            codec: Codec::new(keys, values),
        }
    }

    /// Returns the cache's name.
    pub fn name(&self) -> &str {
        &self.encoded.opened.config.name
    }

    /// Returns the configuration that all members share.
    pub fn config(&self) -> &CacheConfig {
        &self.encoded.opened.config
    }

    /// Returns the topology installed here.
    pub fn topology(&self) -> Option<Topology> {
        self.encoded.opened.topology.borrow().clone()
    }

    /// Returns the entries with values in this member's memory, as primary or backup.
    pub fn local_len(&self) -> u64 {
        self.encoded.opened.container.len() - self.encoded.opened.container.statistics().passive_len()
    }

    /// Returns the entries here with values only in the store.
    pub fn passive_len(&self) -> u64 {
        self.encoded.opened.container.statistics().passive_len()
    }

    /// Returns the bytes of all entries in this member's memory.
    pub fn local_bytes(&self) -> u64 {
        self.encoded.opened.container.bytes()
    }

    /// Returns the memory limit here.
    pub fn memory(&self) -> Option<MemoryBound> {
        self.encoded.opened.container.bound()
    }

    /// Changes the memory limit here, until the cache is opened again. Returns true if the cache was opened
    /// with a limit in the same unit and the new limit is not 0; else nothing is changed. Under a smaller
    /// limit the next writes evict entries, some thousand each.
    pub fn set_memory_limit(&self, limit: Limit) -> bool {
        !limit.is_zero() && self.encoded.opened.container.set_limit(limit)
    }

    /// Returns the handle's options.
    pub fn options(&self) -> &CacheOptions {
        &self.encoded.options
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns a handle with other options.
    #[must_use]
    pub fn with_options(&self, options: CacheOptions) -> Self {
        Self { encoded: EncodedCache { options, ..self.encoded.clone() }, codec: self.codec.clone() }
    }

    /// Returns a handle with this timeout.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(CacheOptions { timeout, ..self.encoded.options })
    }

    /// Returns a handle that reads from these owners, also in iterations.
    #[must_use]
    pub fn with_read_from(&self, read_from: ReadFrom) -> Self {
        self.with_options(CacheOptions { read_from, ..self.encoded.options })
    }

    /// Returns a handle whose operations on keys have exactly these flags, so that [`Flags::NONE`] waits for
    /// all owners in a cache whose file says `mode="ASYNC"`. A flag that the cache's mode does not support
    /// fails on use with [`OperationError::Unsupported`].
    #[must_use]
    pub fn with_flags(&self, flags: Flags) -> Self {
        self.with_options(CacheOptions { flags, ..self.encoded.options })
    }

    /// Returns a handle whose entries have this lifetime.
    #[must_use]
    pub fn with_lifetime(&self, lifetime: Lifetime) -> Self {
        self.with_options(CacheOptions { lifetime, ..self.encoded.options })
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn key<'q, Q: ?Sized>(&self, key: &'q Q) -> Result<Encoded<'q>, CacheError>
    where
        KE: Encode<Q>,
    {
        Ok(self.codec.key(key)?)
    }

    pub(crate) fn putting<W: ?Sized>(&self, value: &W) -> Result<Change, CacheError>
    where
        VE: Encode<W>,
    {
        Ok(self.encoded.putting(self.codec.value(value)?.into_bytes()))
    }

    pub(crate) fn decoded(&self, value: Bytes) -> Result<V, CacheError>
    where
        VE: Decode<V>,
    {
        Ok(self.codec.decode_value(value)?)
    }

    pub(crate) fn entry(&self, stored: Stored) -> Result<Entry<V>, CacheError>
    where
        VE: Decode<V>,
    {
        let Stored { value, version, lifetime, age, idle } = stored;
        Ok(Entry { value: self.decoded(value)?, version, lifetime, age, idle })
    }

    async fn change<Q: ?Sized>(
        &self,
        key: &Q,
        condition: Condition,
        change: Change,
    ) -> Result<Written, CacheError>
    where
        KE: Encode<Q>,
    {
        self.encoded.change(self.key(key)?.into_bytes(), condition, change).await
    }

    async fn exchange<Q: ?Sized>(&self, key: &Q, change: Change) -> Result<Option<V>, CacheError>
    where
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?.into_bytes();
        let written = self.encoded.exchange(key, Condition::Always, change).await?;
        written.previous.map(|stored| self.decoded(stored.value)).transpose()
    }
}

impl RawCache {
    /// Returns a key's value without waiting, if it is in this member's memory and may be read there;
    /// [`Lookup::NotLocal`] says nothing about the key.
    #[inline]
    pub fn get_local(&self, key: &[u8]) -> Lookup<Bytes> {
        self.encoded.value_here(key)
    }

    /// Writes a key without waiting, if this member is its only owner and no listener needs an event: with a
    /// local cache, or a single member. Returns `None` without a change otherwise, if the write would change
    /// nothing, or in a transactional cache.
    pub fn try_write_local(&self, key: &[u8], write: Write) -> Option<Result<Written, CacheError>> {
        let EncodedCache { handler, opened, options, locked_writes } = &self.encoded;
        if options.flags != Flags::NONE || locked_writes.is_some() {
            return None;
        }
        let written = operation::try_write_local(handler, opened, key, write)?;
        Some(written.map_err(CacheError::Operation))
    }

    /// Prefetches the keys to look up next, at most [`PREFETCH_MAX`](crate::PREFETCH_MAX): the CPU fetches
    /// their memory for all at once.
    pub fn prefetch<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.encoded.opened.prefetch(keys);
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns a key's value: on an owner from memory, without the network.
    pub async fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?;
        let value = match self.encoded.value_here(key.as_slice()) {
            Lookup::Hit(value) => Some(value),
            Lookup::Miss => None,
            Lookup::NotLocal => self.encoded.read(key.into_bytes()).await?.map(|stored| stored.value),
        };
        value.map(|value| self.decoded(value)).transpose()
    }

    /// Returns a key's value with its version, lifetime and age.
    pub async fn get_with_metadata<Q: ?Sized>(&self, key: &Q) -> Result<Option<Entry<V>>, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let stored = self.encoded.entry(self.key(key)?).await?;
        stored.map(|stored| self.entry(stored)).transpose()
    }

    /// Whether a key has a value.
    pub async fn contains<Q: ?Sized>(&self, key: &Q) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let key = self.key(key)?;
        match self.encoded.value_here(key.as_slice()) {
            Lookup::Hit(_) => Ok(true),
            Lookup::Miss => Ok(false),
            Lookup::NotLocal => self.encoded.contains(key.into_bytes()).await,
        }
    }

    /// Sets a key's value.
    pub async fn put<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<(), CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value)?;
        self.change(key, Condition::Always, change).await.map(drop)
    }

    /// Sets a key's value with a lifetime.
    pub async fn put_with<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
        lifetime: Lifetime,
    ) -> Result<(), CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = Change::Put { value: self.codec.value(value)?.into_bytes(), lifetime };
        self.change(key, Condition::Always, change).await.map(drop)
    }

    /// Sets a key's value and returns the previous one.
    pub async fn swap<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Option<V>, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W> + Decode<V>,
    {
        let change = self.putting(value)?;
        self.exchange(key, change).await
    }

    /// Sets a key's value if it has none. Returns whether it had none.
    pub async fn put_if_absent<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Absent, change).await?.is_done)
    }

    /// Caches a value from another source, such as a database, if the key has none, without waiting for other
    /// members; returns whether it had none. In a cache of [`CacheMode::Invalidation`] the entry is this
    /// member's alone, and does not invalidate the others'. Another member's write between the read from the
    /// source and this call is not detected.
    pub async fn put_for_external_read<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
    ) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value)?;
        let key = self.key(key)?.into_bytes();
        let is_own = self.config().mode == CacheMode::Invalidation;
        let flags = if is_own { Flags::LOCAL } else { Flags::ASYNC };
        let write = Write { condition: Condition::Absent, change, wants_previous: false };
        Ok(self.encoded.write_with(key, write, flags).await?.is_done)
    }

    /// Sets a key's value if it has one. Returns whether it had.
    pub async fn replace<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Present, change).await?.is_done)
    }

    /// Replaces a key's value if it is the expected one, compared by bytes. Returns whether it was.
    pub async fn replace_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
        value: &W,
    ) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let condition = Condition::Value(self.codec.value(expected)?.into_bytes());
        let change = self.putting(value)?;
        Ok(self.change(key, condition, change).await?.is_done)
    }

    /// Replaces a key's value if its entry has this version. Returns whether it had.
    pub async fn replace_if_version<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        version: Version,
        value: &W,
    ) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value)?;
        Ok(self.change(key, Condition::Version(version), change).await?.is_done)
    }

    /// Removes a key. Returns whether it had a value.
    pub async fn remove<Q: ?Sized>(&self, key: &Q) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        Ok(self.change(key, Condition::Always, Change::Remove).await?.was_present)
    }

    /// Removes a key and returns its value.
    pub async fn take<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        self.exchange(key, Change::Remove).await
    }

    /// Removes a key if its value is the expected one, compared by bytes. Returns whether it was.
    pub async fn remove_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
    ) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let condition = Condition::Value(self.codec.value(expected)?.into_bytes());
        Ok(self.change(key, condition, Change::Remove).await?.is_done)
    }

    /// Removes a key if its entry has this version. Returns whether it had.
    pub async fn remove_if_version<Q: ?Sized>(&self, key: &Q, version: Version) -> Result<bool, CacheError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        Ok(self.change(key, Condition::Version(version), Change::Remove).await?.is_done)
    }

    /// Writes encoded bytes and returns the complete result, for programs that forward clients' requests.
    pub async fn write(&self, key: Bytes, write: Write) -> Result<Written, CacheError> {
        self.encoded.write(key, write).await
    }
}

delegate_basic_cache!(Cache, Version, CacheError {
    async fn compare_exchange(
        &self,
        key: &Q,
        expected: Option<Version>,
        new: Option<&V>,
    ) -> Result<Exchange<V, Version>, CacheError> {
        if expected.is_none() && new.is_none() {
            // A write would not tell an absent key from one that it has removed.
            let current = self.get_with_metadata(key).await?;
            return Ok(current.map_or(Ok(()), |entry| Err(Some(entry.into()))));
        }
        let key = self.key(key)?.into_bytes();
        let written = self.compare_exchange_encoded(key, expected, new).await?;
        Ok(written.map_err(|current| current.map(VersionedValue::from)))
    }
});
