//! A handle of a cache: every operation on one key.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_encoding::{Decode, Encode, Encoding, Postcard, Raw};
use consort_hotrod::ops::map::{Assignment, Request, Response};
use consort_hotrod::{
    Expiration, Flags, MediaType, Metadata, Previous, RequestBody, ResponseBody, Status, Timed,
};

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::client::{CacheState, Inner};
use crate::error::ClientError;
use crate::near::NearCache;
use crate::operation::{Answer, RequestSpec};
use crate::options::{CacheOptions, Lifetime};
use crate::server::Server;

/// A cache of bytes as they are.
pub type RawCache = Cache<Bytes, Bytes, Raw, Raw>;

/// Which write an entry is of, as its server numbers them. Another one is another write, whether it is greater or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub i64);

/// An entry with what is known of it besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// Which write it is of.
    pub version: Version,
    /// How long it lives, in whole seconds.
    pub lifetime: Lifetime,
    /// When it was written, by the server's clock, if it has a lifespan.
    pub created: Option<SystemTime>,
    /// When it was last used, by the server's clock, if it lives by that.
    pub last_used: Option<SystemTime>,
}

/// A handle of a cache on the servers. Cheap to clone, and to be used by many tasks at once; what it asks for with every
/// operation is its own.
///
/// Keys and values are given in borrowed form, as to std's maps. A future that is dropped does not undo what it has begun.
pub struct Cache<K, V, KE = Postcard, VE = Postcard> {
    pub(crate) client: Arc<Inner>,
    pub(crate) state: Arc<CacheState>,
    pub(crate) keys: KE,
    pub(crate) values: VE,
    pub(crate) key_type: MediaType,
    pub(crate) value_type: MediaType,
    pub(crate) near: Option<Arc<NearCache>>,
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
        write!(f, "cache {}", self.state.name)
    }
}

/// What servers are told of keys or values: what has a number, others can mean. The rest is bytes as they are.
fn wire_media_type(encoding: &impl Encoding) -> MediaType {
    match MediaType::named(encoding.media_type()) {
        known @ MediaType::Known { .. } => known,
        MediaType::Named { .. } | MediaType::Unspecified => MediaType::Unspecified,
    }
}

impl<K, V, KE: Encoding, VE: Encoding> Cache<K, V, KE, VE> {
    pub(crate) fn new(
        client: Arc<Inner>,
        state: Arc<CacheState>,
        keys: KE,
        values: VE,
        options: CacheOptions,
    ) -> Self {
        let (key_type, value_type) = (wire_media_type(&keys), wire_media_type(&values));
        let near = None;
        Self { client, state, keys, values, key_type, value_type, near, options, types: PhantomData }
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// The cache's name.
    pub fn name(&self) -> &str {
        self.state.name.as_str()
    }

    /// What this handle asks for.
    pub const fn options(&self) -> &CacheOptions {
        &self.options
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// A handle that asks for something else.
    #[must_use]
    pub fn with_options(&self, options: CacheOptions) -> Self {
        Self {
            client: self.client.clone(),
            state: self.state.clone(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            near: self.near.clone(),
            options,
            types: PhantomData,
        }
    }

    /// The same handle for who has the bytes.
    pub(crate) fn bytes(&self) -> RawCache {
        Cache {
            client: self.client.clone(),
            state: self.state.clone(),
            keys: Raw,
            values: Raw,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            near: self.near.clone(),
            options: self.options,
            types: PhantomData,
        }
    }

    /// A handle whose operations may take so long.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(CacheOptions { timeout, ..self.options })
    }

    /// A handle whose entries live so long.
    #[must_use]
    pub fn with_lifetime(&self, lifetime: Lifetime) -> Self {
        self.with_options(CacheOptions { lifetime: Some(lifetime), ..self.options })
    }

    /// A handle that asks for these flags, too. Others keep theirs: flags are a handle's, not a task's.
    #[must_use]
    pub fn with_flags(&self, flags: Flags) -> Self {
        self.with_options(CacheOptions { flags: self.options.flags | flags, ..self.options })
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// The bytes of a key.
    pub(crate) fn key<Q: ?Sized>(&self, key: &Q) -> Result<Bytes, ClientError>
    where
        KE: Encode<Q>,
    {
        bounded("key", self.keys.encode(key)?.into_bytes(), KEY_BYTES_MAX)
    }

    pub(crate) fn value<W: ?Sized>(&self, value: &W) -> Result<Bytes, ClientError>
    where
        VE: Encode<W>,
    {
        bounded("value", self.values.encode(value)?.into_bytes(), VALUE_BYTES_MAX)
    }

    pub(crate) fn decoded(&self, value: Bytes) -> Result<V, ClientError>
    where
        VE: Decode<V>,
    {
        Ok(self.values.decode(value)?)
    }

    pub(crate) fn expiration(&self) -> Expiration {
        self.options.lifetime.map_or_else(Expiration::default, Lifetime::expiration)
    }

    pub(crate) async fn ask(
        &self,
        body: RequestBody,
        flags: Flags,
        at: Option<Arc<Server>>,
    ) -> Result<Answer, ClientError> {
        let ask = RequestSpec {
            body,
            flags: self.options.flags | flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: self.options.timeout,
        };
        self.client.perform(&self.state, ask, at).await
    }

    /// The same for what is of other types, from any server.
    pub(crate) async fn perform(&self, ask: RequestSpec) -> Result<Answer, ClientError> {
        self.client.perform(&self.state, ask, None).await
    }

    fn assignment<Q, W>(&self, key: &Q, value: &W) -> Result<Assignment, ClientError>
    where
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        Ok(Assignment { key: self.key(key)?, expiration: self.expiration(), value: self.value(value)? })
    }

    /// Does a write. Whether it was done, or there was nothing of the kind.
    pub(crate) async fn write(&self, request: Request) -> Result<bool, ClientError> {
        let _forgotten = self.forgotten(|| [request.key().clone()]);
        let answer = self.ask(RequestBody::Map(request), Flags::NONE, None).await?;
        match answer.status {
            status if status.is_success() => Ok(true),
            Status::NotExecuted | Status::NotFound | Status::NotExecutedWithPrevious => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

    /// Does a write and returns what the key had before.
    async fn exchange(&self, request: Request) -> Result<Option<V>, ClientError>
    where
        VE: Decode<V>,
    {
        let _forgotten = self.forgotten(|| [request.key().clone()]);
        let answer = self.ask(RequestBody::Map(request), Flags::FORCE_RETURN_PREVIOUS, None).await?;
        match answer.body {
            ResponseBody::Map(Response::Previous(previous)) => {
                previous.map(|Previous { value, .. }| self.decoded(value)).transpose()
            }
            ResponseBody::Empty => Ok(None),
            _ => Err(answer.unexpected()),
        }
    }
}

/// An entry, as its server tells of it.
pub(crate) fn entry<V>(metadata: Metadata, value: V) -> Entry<V> {
    let Metadata { lifespan, max_idle, version } = metadata;
    let span = |timed: Timed| Duration::from_secs(timed.seconds.into());
    Entry {
        value,
        version: Version(version),
        lifetime: Lifetime { lifespan: lifespan.map(span), max_idle: max_idle.map(span) },
        created: lifespan.and_then(since),
        last_used: max_idle.and_then(since),
    }
}

fn bounded(what: &'static str, bytes: Bytes, limit: usize) -> Result<Bytes, ClientError> {
    let length = bytes.len();
    if length > limit { Err(ClientError::TooLarge { what, length, limit }) } else { Ok(bytes) }
}

/// When that was. Servers may say anything.
fn since(timed: Timed) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(timed.since).ok()?))
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// What a key has.
    pub async fn get<Q>(&self, key: &Q) -> Result<Option<V>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?;
        if let Some(found) = self.read_near(&key).await? {
            return found.map(|(_, value)| self.decoded(value)).transpose();
        }
        let request = RequestBody::Map(Request::Get(key));
        let answer = self.ask(request, Flags::NONE, None).await?;
        match answer.body {
            ResponseBody::Map(Response::Value(value)) => self.decoded(value).map(Some),
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(None),
            _ => Err(answer.unexpected()),
        }
    }

    /// What a key has, with its version and how long it lives.
    pub async fn get_with_metadata<Q>(&self, key: &Q) -> Result<Option<Entry<V>>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        let key = self.key(key)?;
        if let Some(found) = self.read_near(&key).await? {
            let decoded = |(metadata, value)| Ok(entry(metadata, self.decoded(value)?));
            return found.map(decoded).transpose();
        }
        let request = RequestBody::Map(Request::GetWithMetadata(key));
        let answer = self.ask(request, Flags::NONE, None).await?;
        match answer.body {
            ResponseBody::Map(Response::WithMetadata(metadata, value)) => {
                Ok(Some(entry(metadata, self.decoded(value)?)))
            }
            ResponseBody::Empty if answer.status == Status::NotFound => Ok(None),
            _ => Err(answer.unexpected()),
        }
    }

    /// Whether a key has a value.
    pub async fn contains<Q>(&self, key: &Q) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        let request = RequestBody::Map(Request::ContainsKey(self.key(key)?));
        let answer = self.ask(request, Flags::NONE, None).await?;
        match answer.status {
            Status::Success => Ok(true),
            Status::NotFound => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

    /// Gives a key a value, whatever it had.
    pub async fn put<Q, W>(&self, key: &Q, value: &W) -> Result<(), ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.write(Request::Put(self.assignment(key, value)?)).await.map(drop)
    }

    /// Gives a key a value that lives so long.
    pub async fn put_with<Q, W>(&self, key: &Q, value: &W, lifetime: Lifetime) -> Result<(), ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        let to = Assignment { expiration: lifetime.expiration(), ..self.assignment(key, value)? };
        self.write(Request::Put(to)).await.map(drop)
    }

    /// Gives a key a value and returns what it had. An empty value that it had is not told.
    pub async fn swap<Q, W>(&self, key: &Q, value: &W) -> Result<Option<V>, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W> + Decode<V>,
    {
        self.exchange(Request::Put(self.assignment(key, value)?)).await
    }

    /// Gives a key a value unless it has one. Whether it had none.
    pub async fn put_if_absent<Q, W>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.write(Request::PutIfAbsent(self.assignment(key, value)?)).await
    }

    /// Gives a key another value if it has one. Whether it had.
    pub async fn replace<Q, W>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.write(Request::Replace(self.assignment(key, value)?)).await
    }

    /// Gives a key another value if its entry has this version. Whether it had.
    pub async fn replace_if_version<Q, W>(
        &self,
        key: &Q,
        version: Version,
        value: &W,
    ) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        V: Borrow<W>,
        Q: ?Sized,
        W: ?Sized,
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        self.write(Request::ReplaceIfUnmodified(self.assignment(key, value)?, version.0)).await
    }

    /// Takes a key's value away. Whether it had one.
    pub async fn remove<Q>(&self, key: &Q) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        self.write(Request::Remove(self.key(key)?)).await
    }

    /// Takes a key's value away and returns it. An empty value is not told.
    pub async fn take<Q>(&self, key: &Q) -> Result<Option<V>, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
        VE: Decode<V>,
    {
        self.exchange(Request::Remove(self.key(key)?)).await
    }

    /// Takes a key's value away if its entry has this version. Whether it had.
    pub async fn remove_if_version<Q>(&self, key: &Q, version: Version) -> Result<bool, ClientError>
    where
        K: Borrow<Q>,
        Q: ?Sized,
        KE: Encode<Q>,
    {
        self.write(Request::RemoveIfUnmodified(self.key(key)?, version.0)).await
    }
}
