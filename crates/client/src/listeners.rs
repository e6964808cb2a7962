//! Changes of a cache, as streams (facts section 2.7).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{Decode, EncodingError, EventKind};
use consort_hotrod::RequestBody;
use consort_hotrod::ops::event::{self, EventData};
use consort_hotrod::ops::listener::{Factory, Interests, KEY_VALUE_VERSION, Listener, Request};
use futures_core::Stream;

use crate::cache::{Cache, Version};
use crate::connection::sinks::ServerEvent;
use crate::error::ClientError;
use crate::filter::{Filter, PARAMS_MAX};
use crate::limits::EVENTS_MAX;
use crate::registration::{ListenTarget, ListenedCache};
use crate::subscription::{ByteSize, Delivery, Subscription, SubscriptionSpec};

/// An event of one key, without its value, or with it from [`Cache::listen_entries`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent<K> {
    /// The kind of the change.
    pub kind: EventKind,
    /// The key.
    pub key: K,
    /// The version of the write, if the key has a value after it.
    pub version: Option<Version>,
    /// The server retried the write: the event may be a duplicate.
    pub is_repeated: bool,
}

/// An event of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<K> {
    /// A change of a key.
    Entry(EntryEvent<K>),
    /// A change of a key, converted by [`ListenBuilder::converter`].
    Converted {
        /// The kind of the change.
        kind: EventKind,
        /// The converter's output.
        data: Bytes,
    },
    /// The initial state is complete. Only with [`ListenBuilder::with_state`].
    Complete,
    /// Earlier events may be missing: the listener's server was lost, or the reader was too slow.
    Gap,
}

/// The configuration of a listener, from [`Cache::listen`].
#[must_use = "a listener does nothing before `start`"]
pub struct ListenBuilder<K> {
    listened: ListenedCache,
    wanted: Wanted,
    timeout: Duration,
    queue_len_max: usize,
    decode: Decoder<K>,
}

/// Decodes events.
struct Decoder<K> {
    /// Of the key, or with values of the output of the servers' converter.
    decode: Box<DecodeEvent<K>>,
    has_values: bool,
}

type DecodeEvent<K> = dyn Fn(Bytes) -> Result<(K, Option<Version>), ClientError> + Send;

#[derive(Clone, Debug)]
struct Wanted {
    with_state: bool,
    filter: Option<Factory>,
    converter: Option<Factory>,
    interests: Interests,
}

impl<K> fmt::Debug for ListenBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener of {} with {:?}", self.listened.cache.name, self.wanted)
    }
}

impl<K> ListenBuilder<K> {
    /// Delivers existing entries first, as [`EventKind::Existing`], then [`Event::Complete`]; concurrent changes are delivered at
    /// once. After a lost server's gap the state comes again, without entries removed meanwhile. Infinispan's servers may send
    /// some of it after they report completion.
    ///
    /// A slow reader gets a gap in the state; for large caches use [`Cache::keys`], which waits.
    pub fn with_state(mut self) -> Self {
        self.wanted.with_state = true;
        self
    }

    /// Restricts events to those that match a filter, applied by the servers.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.wanted.filter = Some(filter.into_factory());
        self
    }

    /// Converts events on the servers by this converter; they arrive as [`Event::Converted`]. It works on plain bytes and gets
    /// the first 255 parameters.
    ///
    /// Consort's and Infinispan's servers have `___eager-key-value-version-converter`: the key's length as a variable-length
    /// number, the key, and for a present value its length, the value and eight bytes of version. With any parameter, removals
    /// have the previous value and version.
    pub fn converter(mut self, name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        let params = params.into_iter().take(PARAMS_MAX).collect();
        self.wanted.converter = Some(Factory { name: name.into(), params });
        self.decode.has_values = false;
        self
    }

    /// Restricts events to these kinds, by default all; existing entries count as created.
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = EventKind>) -> Self {
        let bit = |kind| match kind {
            EventKind::Created | EventKind::Existing => Interests::CREATED,
            EventKind::Modified => Interests::MODIFIED,
            EventKind::Removed => Interests::REMOVED,
            EventKind::Expired => Interests::EXPIRED,
        };
        self.wanted.interests =
            Interests::from_bits(kinds.into_iter().fold(0, |bits, kind| bits | bit(kind)));
        self
    }

    /// Sets the event queue's maximum length, by default [`EVENTS_MAX`], and 16 MiB of keys. On overflow one [`Event::Gap`]
    /// replaces the queue, because a slow reader must not block the shared connection.
    pub fn queue_len_max(mut self, queue_len_max: usize) -> Self {
        self.queue_len_max = queue_len_max;
        self
    }

    /// Starts the listener, which misses no change that begins later.
    ///
    /// # Errors
    ///
    /// If no server is reachable in time, or the server refuses: it does not have the cache or filter, or has too many listeners.
    pub async fn start(self) -> Result<Events<K>, ClientError> {
        let Self { listened, wanted, timeout, queue_len_max, decode } = self;
        let (interests, with_state) = (wanted.interests, wanted.with_state);
        let spec = SubscriptionSpec {
            listened,
            timeout,
            with_state,
            request: Box::new(move |id| RequestBody::Listener(wanted.request(id))),
            to_event: Box::new(move |event| Change::from_event(event, interests)),
        };
        Ok(Events { subscription: Subscription::begin(spec, queue_len_max).await?, decode })
    }
}

/// A stream of a listener's events, which ends the listener on drop.
///
/// Events of a key come in the order of its changes. A lost server yields [`Event::Gap`] and a registration with another one.
/// Changes between the loss and the new registration are not delivered; earlier ones may be delivered again as state.
pub struct Events<K> {
    subscription: Subscription<Change>,
    decode: Decoder<K>,
}

impl<K> fmt::Debug for Events<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("events")
    }
}

impl<K> Stream for Events<K> {
    type Item = Result<Event<K>, ClientError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let heard = std::task::ready!(self.subscription.poll(cx));
        let decoded = |heard| {
            Ok(match heard {
                Delivery::Event(Change::Key { kind, key, version, is_repeated }) => {
                    let (key, _) = (self.decode.decode)(key)?;
                    Event::Entry(EntryEvent { kind, key, version: version.map(Version), is_repeated })
                }
                Delivery::Event(Change::Converted { kind, data, is_repeated }) if self.decode.has_values => {
                    let (key, version) = (self.decode.decode)(data)?;
                    Event::Entry(EntryEvent { kind, key, version, is_repeated })
                }
                Delivery::Event(Change::Converted { kind, data, .. }) => Event::Converted { kind, data },
                Delivery::Complete => Event::Complete,
                Delivery::Gap => Event::Gap,
            })
        };
        Poll::Ready(heard.map(|heard| heard.and_then(decoded)))
    }
}

impl<K> Events<K> {
    /// Returns the next event, as the stream's `next`; `None` after a server's error.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; earlier events are valid. If no server is reachable or accepts the listener, the stream waits without an
    /// error. After a decoding failure the next event follows.
    pub async fn next(&mut self) -> Option<Result<Event<K>, ClientError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

#[derive(Clone)]
enum Change {
    Key { kind: EventKind, key: Bytes, version: Option<i64>, is_repeated: bool },
    Converted { kind: EventKind, data: Bytes, is_repeated: bool },
}

impl ByteSize for Change {
    fn bytes(&self) -> usize {
        match self {
            Self::Key { key: bytes, .. } | Self::Converted { data: bytes, .. } => bytes.len(),
        }
    }
}

/// Copies the bytes out of their receive buffer.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Change {
    /// Converts a server's event, if its kind is requested: servers before 2.6 send all kinds.
    fn from_event(event: ServerEvent, interests: Interests) -> Option<Self> {
        let ServerEvent::Entry(event) = event else { return None };
        let (kind, interest) = match event.kind {
            event::EventKind::Created if event.id != 0 => (EventKind::Existing, Interests::CREATED),
            event::EventKind::Created => (EventKind::Created, Interests::CREATED),
            event::EventKind::Modified => (EventKind::Modified, Interests::MODIFIED),
            event::EventKind::Removed => (EventKind::Removed, Interests::REMOVED),
            event::EventKind::Expired => (EventKind::Expired, Interests::EXPIRED),
        };
        let change = match &event.data {
            EventData::Key(key, version) => {
                Self::Key { kind, key: own(key), version: *version, is_repeated: event.is_retried }
            }
            EventData::Custom(data) | EventData::Raw(data) => {
                Self::Converted { kind, data: own(data), is_repeated: event.is_retried }
            }
        };
        interests.contains(interest).then_some(change)
    }
}

impl Wanted {
    fn request(&self, id: Bytes) -> Request {
        let Self { with_state, filter, converter, interests } = self.clone();
        Request::Add(Listener {
            id,
            includes_state: with_state,
            is_raw: filter.is_some() || converter.is_some(),
            filter,
            converter,
            interests,
        })
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn listened(&self) -> ListenedCache {
        ListenedCache {
            client: self.client.clone(),
            cache: self.state.clone(),
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            subject: ListenTarget::Entries,
        }
    }

    /// Listens to the changes of all keys, unless restricted by the builder.
    pub fn listen(&self) -> ListenBuilder<K>
    where
        KE: Decode<K>,
    {
        let keys = self.codec.keys().clone();
        ListenBuilder {
            listened: self.listened(),
            wanted: Wanted { with_state: false, filter: None, converter: None, interests: Interests::ALL },
            timeout: self.options().timeout,
            queue_len_max: EVENTS_MAX,
            decode: Decoder { decode: Box::new(move |key| Ok((keys.decode(key)?, None))), has_values: false },
        }
    }

    /// Listens to the changes of all keys with their values: an event's key is the pair of both. There is no value after a
    /// removal, or if the key was written again before the server sent the event. For caches that store the type of this handle.
    ///
    /// ```no_run
    /// # async fn example(client: consort_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use consort_client::Event;
    ///
    /// let stock = client.cache::<String, u32>("stock");
    /// let mut events = stock.listen_entries().start().await?;
    /// while let Some(event) = events.next().await {
    ///     if let Event::Entry(event) = event? {
    ///         let (name, count) = event.key;
    ///         println!("{name}: {count:?}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen_entries(&self) -> ListenBuilder<(K, Option<V>)>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        let decode = move |data: Bytes| {
            let (key, value) = event::from_key_value_version(&data).ok_or_else(|| EncodingError {
                media_type: KEY_VALUE_VERSION.into(),
                reason: "the server's event is invalid".to_owned(),
            })?;
            let key = keys.decode(key)?;
            Ok(match value {
                None => ((key, None), None),
                Some((value, version)) => ((key, Some(values.decode(value)?)), Some(Version(version))),
            })
        };
        ListenBuilder {
            listened: self.listened(),
            wanted: Wanted {
                with_state: false,
                filter: None,
                converter: Some(Factory { name: KEY_VALUE_VERSION.into(), params: Vec::new() }),
                interests: Interests::ALL,
            },
            timeout: self.options().timeout,
            queue_len_max: EVENTS_MAX,
            decode: Decoder { decode: Box::new(decode), has_values: true },
        }
    }
}
