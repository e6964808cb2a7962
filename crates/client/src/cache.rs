use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consort_encoding::{
    Codec, Decode, Encode, EncodeBorrowed, Encoding, Lifetime, Postcard, Raw, VersionedValue,
    delegate_basic_cache,
};
use consort_hotrod::ops::map::{Assignment, Request, Response};
use consort_hotrod::{
    Expiration, Flags, MediaType, Metadata, Previous, RequestBody, ResponseBody, Status, Timed,
};

use crate::client_state::{CacheState, ClientState};
use crate::error::ClientError;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::near::{Invalidations, NearCache};
use crate::near_reads::Found;
use crate::operation::{Answer, RequestSpec};
use crate::options::{self, CacheOptions};
use crate::server::Server;

/// A cache of plain bytes.
pub type RawCache = Cache<Bytes, Bytes, Raw, Raw>;

/// The version of an entry, as numbered by its server. Different versions are different writes, without an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub i64);

/// A value with its metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<V> {
    /// The value.
    pub value: V,
    /// The version of the write.
    pub version: Version,
    /// The lifetime, in whole seconds.
    pub lifetime: Lifetime,
    /// When the entry was written, by the server's clock, if it has a lifespan.
    pub created: Option<SystemTime>,
    /// When the entry was last used, by the server's clock, if it has a max-idle time.
    pub last_used: Option<SystemTime>,
}

impl<V> From<Entry<V>> for VersionedValue<V, Version> {
    fn from(entry: Entry<V>) -> Self {
        let Entry { value, version, lifetime, .. } = entry;
        Self { value, version, lifetime }
    }
}

/// A handle of a cache on the servers, cheap to clone, for many tasks at once. Each handle has its own [`CacheOptions`].
///
/// Keys and values are passed in borrowed form, as in std's maps. Dropping a future does not undo its operation.
pub struct Cache<K, V, KE = Postcard, VE = Postcard> {
    pub(crate) client: Arc<ClientState>,
    pub(crate) state: Arc<CacheState>,
    pub(crate) codec: Codec<K, V, KE, VE>,
    pub(crate) key_type: MediaType,
    pub(crate) value_type: MediaType,
    pub(crate) near: Option<Arc<NearCache>>,
    options: CacheOptions,
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

fn wire_media_type(encoding: &impl Encoding) -> MediaType {
    match MediaType::named(encoding.media_type()) {
        known @ MediaType::Known { .. } => known,
        MediaType::Named { .. } | MediaType::Unspecified => MediaType::Unspecified,
    }
}

impl<K, V, KE: Encoding, VE: Encoding> Cache<K, V, KE, VE> {
    pub(crate) fn new(
        client: Arc<ClientState>,
        state: Arc<CacheState>,
        keys: KE,
        values: VE,
        options: CacheOptions,
    ) -> Self {
        let (key_type, value_type) = (wire_media_type(&keys), wire_media_type(&values));
        let codec = Codec::new(keys, values);
        Self { client, state, codec, key_type, value_type, near: None, options }
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the cache's name.
    pub fn name(&self) -> &str {
        self.state.name.as_str()
    }

    /// Returns the options of this handle.
    pub const fn options(&self) -> &CacheOptions {
        &self.options
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    fn with<K2, V2, KE2, VE2>(
        &self,
        codec: Codec<K2, V2, KE2, VE2>,
        options: CacheOptions,
    ) -> Cache<K2, V2, KE2, VE2> {
        Cache {
            client: self.client.clone(),
            state: self.state.clone(),
            codec,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            near: self.near.clone(),
            options,
        }
    }

    pub(crate) fn bytes(&self) -> RawCache {
        self.with(Codec::RAW, self.options)
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Returns a handle with other options.
    #[must_use]
    pub fn with_options(&self, options: CacheOptions) -> Self {
        self.with(self.codec.clone(), options)
    }

    /// Returns a handle with another operation timeout.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        self.with_options(CacheOptions { timeout, ..self.options })
    }

    /// Returns a handle whose writes set this lifetime.
    #[must_use]
    pub fn with_lifetime(&self, lifetime: Lifetime) -> Self {
        self.with_options(CacheOptions { lifetime: Some(lifetime), ..self.options })
    }

    /// Returns a handle that also sends these flags, which belong to the handle, not to a task.
    #[must_use]
    pub fn with_flags(&self, flags: Flags) -> Self {
        self.with_options(CacheOptions { flags: self.options.flags | flags, ..self.options })
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn key<Q: ?Sized>(&self, key: &Q) -> Result<Bytes, ClientError>
    where
        KE: Encode<Q>,
    {
        bounded("key", self.codec.key(key)?.into_bytes(), KEY_BYTES_MAX)
    }

    pub(crate) fn value<W: ?Sized>(&self, value: &W) -> Result<Bytes, ClientError>
    where
        VE: Encode<W>,
    {
        bounded("value", self.codec.value(value)?.into_bytes(), VALUE_BYTES_MAX)
    }

    pub(crate) fn decoded(&self, value: Bytes) -> Result<V, ClientError>
    where
        VE: Decode<V>,
    {
        Ok(self.codec.decode_value(value)?)
    }

    pub(crate) fn expiration(&self) -> Expiration {
        self.options.lifetime.map_or_else(Expiration::default, options::expiration)
    }

    pub(crate) async fn ask(
        &self,
        body: RequestBody,
        flags: Flags,
        at: Option<Arc<Server>>,
    ) -> Result<Answer, ClientError> {
        self.client.perform(&self.state, self.request(body, flags), at).await
    }

    fn request(&self, body: RequestBody, flags: Flags) -> RequestSpec {
        RequestSpec {
            body,
            flags: self.options.flags | flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: self.options.timeout,
        }
    }

    /// `None` if the near cache cannot serve the key.
    async fn read_near(&self, key: &Bytes) -> Result<Option<Found>, ClientError> {
        let Some(near) = &self.near else { return Ok(None) };
        let request = || self.request(RequestBody::Map(Request::GetWithMetadata(key.clone())), Flags::NONE);
        near.read(&self.client, &self.state, key, request).await
    }

    pub(crate) fn forgotten<I: IntoIterator<Item = Bytes>>(
        &self,
        keys: impl FnOnce() -> I,
    ) -> Option<Invalidations<'_>> {
        self.near.as_ref().map(|near| near.invalidations(keys()))
    }

    pub(crate) fn forgotten_all(&self) -> Option<Invalidations<'_>> {
        self.near.as_ref().map(|near| near.invalidation_of_all())
    }

    pub(crate) async fn perform(&self, ask: RequestSpec) -> Result<Answer, ClientError> {
        self.client.perform(&self.state, ask, None).await
    }

    fn assignment<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Assignment, ClientError>
    where
        KE: Encode<Q>,
        VE: Encode<W>,
    {
        Ok(Assignment { key: self.key(key)?, expiration: self.expiration(), value: self.value(value)? })
    }

    pub(crate) async fn write(&self, request: Request) -> Result<bool, ClientError> {
        let _forgotten = self.forgotten(|| [request.key().clone()]);
        let answer = self.ask(RequestBody::Map(request), Flags::NONE, None).await?;
        match answer.status {
            status if status.is_success() => Ok(true),
            Status::NotExecuted | Status::NotFound | Status::NotExecutedWithPrevious => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

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

/// A server may send any number.
fn since(timed: Timed) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(timed.since).ok()?))
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns the value of a key.
    pub async fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
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

    /// Returns the value of a key with its version and lifetime.
    pub async fn get_with_metadata<Q: ?Sized>(&self, key: &Q) -> Result<Option<Entry<V>>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
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

    /// Returns whether a key has a value.
    pub async fn contains<Q: ?Sized>(&self, key: &Q) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let request = RequestBody::Map(Request::ContainsKey(self.key(key)?));
        let answer = self.ask(request, Flags::NONE, None).await?;
        match answer.status {
            Status::Success => Ok(true),
            Status::NotFound => Ok(false),
            _ => Err(answer.unexpected()),
        }
    }

    /// Puts a value, whatever the key's current value.
    pub async fn put<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<(), ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.write(Request::Put(self.assignment(key, value)?)).await.map(drop)
    }

    /// Puts a value with this lifetime.
    pub async fn put_with<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
        lifetime: Lifetime,
    ) -> Result<(), ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let to = Assignment { expiration: options::expiration(lifetime), ..self.assignment(key, value)? };
        self.write(Request::Put(to)).await.map(drop)
    }

    /// Puts a value and returns the previous one. An empty previous value is returned as `None`.
    pub async fn swap<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Option<V>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W> + Decode<V>,
    {
        self.exchange(Request::Put(self.assignment(key, value)?)).await
    }

    /// Puts a value if the key has none. Returns whether it did.
    pub async fn put_if_absent<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.write(Request::PutIfAbsent(self.assignment(key, value)?)).await
    }

    /// Replaces the value of a key if it has one. Returns whether it did.
    pub async fn replace<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.write(Request::Replace(self.assignment(key, value)?)).await
    }

    /// Replaces the value of a key if its entry has this version. Returns whether it did.
    pub async fn replace_if_version<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        version: Version,
        value: &W,
    ) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.write(Request::ReplaceIfUnmodified(self.assignment(key, value)?, version.0)).await
    }

    /// Removes a key. Returns whether it had a value.
    pub async fn remove<Q: ?Sized>(&self, key: &Q) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        self.write(Request::Remove(self.key(key)?)).await
    }

    /// Removes a key and returns its value. An empty value is returned as `None`.
    pub async fn take<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        self.exchange(Request::Remove(self.key(key)?)).await
    }

    /// Removes a key if its entry has this version. Returns whether it did.
    pub async fn remove_if_version<Q: ?Sized>(&self, key: &Q, version: Version) -> Result<bool, ClientError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        self.write(Request::RemoveIfUnmodified(self.key(key)?, version.0)).await
    }
}

delegate_basic_cache!(Cache, Version, ClientError {});
