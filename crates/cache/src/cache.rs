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
use crate::operation::{self, Operation};
use crate::options::CacheOptions;
use crate::standing::OpenCache;
use consort_encoding::{Decode, Encode, Encoded, Postcard, Raw};

/// A cache of bytes as they are.
pub type RawCache = Cache<Bytes, Bytes, Raw, Raw>;

/// An entry with what is known of it besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// Which write it is of.
    pub version: Version,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// How long ago it was written.
    pub age: Duration,
    /// How long ago it was last used, if it lives by that; else its age.
    pub idle: Duration,
}

/// A handle of a cache that is open on this member. Cheap to clone. It does not keep the manager open.
///
/// Keys and values are given in borrowed form, as to std's maps: bytes as slices, strings as `&str`. A write is done when every
/// owner has it ([what is promised](crate#what-is-promised)). A future that is dropped does not undo what it has begun.
///
/// # Errors
///
/// Of operations on keys: [`CacheError::Encoding`] for what cannot be written or read as bytes, [`CacheError::Closed`] once the
/// cache or the manager is closed, and else [`CacheError::Operation`], where each [`OperationError`] says whether something may
/// have been changed.
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

    /// The cache's name.
    pub fn name(&self) -> &str {
        &self.opened.config.name
    }

    /// What all its members have agreed upon.
    pub fn config(&self) -> &CacheConfig {
        &self.opened.config
    }

    /// The topology that is installed here.
    pub fn topology(&self) -> Option<Topology> {
        self.opened.topology.borrow().clone()
    }

    /// Entries in memory on this member, as an owner of whatever order. Those of which only the store has the value are not
    /// counted.
    pub fn local_len(&self) -> u64 {
        self.opened.container.len() - self.opened.container.passive_len()
    }

    /// Entries on this member of which only the store has the value.
    pub fn passive_len(&self) -> u64 {
        self.opened.container.passive_len()
    }

    /// Bytes that they take here.
    pub fn local_bytes(&self) -> u64 {
        self.opened.container.bytes()
    }

    /// How much this member may have of it in memory.
    pub fn memory(&self) -> Option<MemoryBound> {
        self.opened.container.bound()
    }

    /// Changes how much this member may have of it in memory, until the cache is opened again. True if it was bounded when it was
    /// opened, in the same unit, and the limit is not 0; else nothing is changed. What is there beyond a smaller limit makes room with the next
    /// writes, some thousand entries each.
    pub fn set_memory_limit(&self, limit: Limit) -> bool {
        !limit.is_zero() && self.opened.container.set_limit(limit)
    }

    /// What this handle asks for.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// A handle that asks for something else.
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

    /// A handle whose operations may take so long.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(CacheOptions { timeout, ..self.options })
    }

    /// A handle that reads there, also when it walks through entries.
    #[must_use]
    pub fn with_read_from(&self, read_from: ReadFrom) -> Self {
        self.with_options(CacheOptions { read_from, ..self.options })
    }

    /// A handle whose operations on keys do this otherwise than the cache: these flags and no others, so that
    /// [`Flags::NONE`] waits for all owners in a cache whose file says `mode="ASYNC"`. A flag that the cache's mode cannot
    /// honour is [`OperationError::Unsupported`] when it is used.
    #[must_use]
    pub fn with_flags(&self, flags: Flags) -> Self {
        self.with_options(CacheOptions { flags, ..self.options })
    }

    /// A handle whose entries live so long.
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
    /// Begins an operation when it is polled.
    pub(crate) fn operation(&self, key: Bytes, action: Action) -> Operation<'_> {
        Operation::new(&self.handler, &self.opened, key, action, &self.options)
    }

    /// The bytes of a key.
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

    /// What a key has here, if that may be known here and is asked for.
    pub(crate) fn value_here(&self, key: &[u8]) -> Lookup<Bytes> {
        match self.options.read_from {
            ReadFrom::Nearest => self.opened.value_here(key, || self.handler.now()),
            ReadFrom::Primary => Lookup::Elsewhere,
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
    /// What a key has, if that is in this member's memory and may be read there; [`Lookup::Elsewhere`] says nothing about
    /// the key. Like [`Cache::get`] without waiting.
    #[inline]
    pub fn get_here(&self, key: &[u8]) -> Lookup<Bytes> {
        self.value_here(key)
    }

    /// Writes a key at once, if this member owns it alone and nobody is told of it: with a local cache, or a single member.
    /// Nothing if not, or if the write would change nothing; nothing was done then. Like [`Cache::write`] without waiting.
    pub fn write_here(&self, key: &[u8], write: Write) -> Option<Result<Written, CacheError>> {
        if self.options.flags != Flags::NONE {
            return None;
        }
        let written = operation::write_here(&self.handler, &self.opened, key, write)?;
        Some(written.map_err(CacheError::Operation))
    }

    /// Tells that these keys are looked up next, at most [`AHEAD_MAX`](crate::AHEAD_MAX) of them: what that needs of memory is
    /// fetched for all at once. It shows in nothing else.
    pub fn look_ahead<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        self.opened.look_ahead(keys);
    }
}

/// A node answers a write with what was written.
fn unexpected() -> CacheError {
    CacheError::Operation(OperationError::Uncertain)
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// What a key has. On an owner that is a look into memory, without the network.
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
            Lookup::Elsewhere => self.read(key.into_bytes()).await?.map(|stored| stored.value),
        };
        value.map(|value| self.decoded(value)).transpose()
    }

    /// What a key has, with its version, lifetime and age.
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
            ReadFrom::Primary => Lookup::Elsewhere,
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
            Lookup::Elsewhere => {
                let stored = self.read(key.into_bytes()).await?;
                stored.map(|stored| self.entry(stored)).transpose()
            }
        }
    }

    /// Whether a key has a value.
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
            Lookup::Elsewhere => {
                // A large value need not be sent to know that it is there.
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

    /// Gives a key a value, whatever it had.
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

    /// Gives a key a value that lives so long.
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

    /// Gives a key a value and returns what it had.
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

    /// Gives a key a value unless it has one. Whether it had none.
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

    /// Gives a key a value that comes from elsewhere, a database say, unless it has one, without waiting for others. In a
    /// cache of [`CacheMode::Invalidation`] that is this member's alone, and takes nothing away from others; a write of
    /// theirs after it was read elsewhere, and before it is put here, is not noticed. Whether it had none.
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

    /// Gives a key another value if it has one. Whether it had.
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

    /// Gives a key another value if it has this one, by its bytes. Whether it had.
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

    /// Gives a key another value if its entry has this version. Whether it had.
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

    /// Takes a key's value away. Whether it had one.
    pub async fn remove<Q>(&self, key: &Q) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        Ok(self.change(key, Condition::Always, Change::Remove).await?.was_present)
    }

    /// Takes a key's value away and returns it.
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

    /// Takes a key's value away if it is this one, by its bytes. Whether it was.
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

    /// Takes a key's value away if its entry has this version. Whether it had.
    pub async fn remove_if_version<Q>(&self, key: &Q, version: Version) -> Result<bool, CacheError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        Ok(self.change(key, Condition::Version(version), Change::Remove).await?.is_done)
    }

    /// A write in bytes with all that came of it, for those who speak for others.
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
