//! Being told what changes in a cache, as a stream (facts section 2.7).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::Decode;
use consort_hotrod::RequestBody;
use consort_hotrod::ops::event::{self, EventData};
use consort_hotrod::ops::listener::{Factory, Interests, Listener, Request};
use futures_core::Stream;

use crate::limits::EVENTS_MAX;
use crate::cache::{Cache, Version};
use crate::error::ClientError;
use crate::filter::{Filter, PARAMS_MAX};
use crate::subscription::{Delivery, Subscription, ByteSize, SubscriptionSpec};
use crate::sinks::Told;
use crate::registration::{ListenedCache, ListenTarget};

/// What has happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EventKind {
    /// It was absent, and has a value now.
    Created,
    /// It has another value now.
    Modified,
    /// It is absent now.
    Removed,
    /// Its time was over.
    Expired,
    /// Nothing: it is there.
    Existing,
}

/// An event of one key. Its value is not told: [`Cache::get`] gives what it has by then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryEvent<K> {
    /// What has happened.
    pub kind: EventKind,
    /// The key.
    pub key: K,
    /// Which write it is of, if the key has a value after it.
    pub version: Option<Version>,
    /// The server has tried it more than once: it may have been told before.
    pub is_repeated: bool,
}

/// What a listener is told.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<K> {
    /// Something has happened to a key.
    Entry(EntryEvent<K>),
    /// The same, as a converter has told it: [`ListenBuilder::converter`].
    Converted {
        /// What has happened.
        kind: EventKind,
        /// What the converter has made of it.
        data: Bytes,
    },
    /// What was there has come. Only with [`ListenBuilder::with_state`].
    Complete,
    /// Changes before this may not have been told: the listener's server was lost, or its reader was too slow.
    Gap,
}

/// What is to be told. From [`Cache::listen`].
#[must_use = "nothing is told before it is started"]
pub struct ListenBuilder<K> {
    listened: ListenedCache,
    wanted: Wanted,
    timeout: Duration,
    queue_len_max: usize,
    decode: Box<DecodeKey<K>>,
}

type DecodeKey<K> = dyn Fn(Bytes) -> Result<K, ClientError> + Send;

/// What servers are asked for.
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
    /// What is there comes first, as [`EventKind::Existing`], then [`Event::Complete`]; changes meanwhile are told at once.
    /// After a gap because a server was lost it comes again: what is gone by then is not among it. Infinispan's servers may
    /// tell some of it after they have said that it is complete.
    ///
    /// A reader that is too slow for it has a gap in it: [`Cache::keys`] waits for its reader, and suits large caches
    /// better.
    pub fn with_state(mut self) -> Self {
        self.wanted.with_state = true;
        self
    }

    /// Only what this filter lets through: the servers apply it.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.wanted.filter = Some(filter.into_factory());
        self
    }

    /// Events as the converter that servers know by this name makes them: they come as [`Event::Converted`]. It works on
    /// bytes as they are. Its first 255 parameters are given to it.
    ///
    /// Consort's servers and Infinispan's have `___eager-key-value-version-converter`: the key's length as a variable
    /// number and the key, and if there is a value, the same of it and eight bytes of its version. With any parameter, what
    /// is gone comes with the value and the version that it had.
    pub fn converter(mut self, name: &str, params: impl IntoIterator<Item = Bytes>) -> Self {
        let params = params.into_iter().take(PARAMS_MAX).collect();
        self.wanted.converter = Some(Factory { name: name.into(), params });
        self
    }

    /// Only events of these kinds; what is there comes with those that are created. All kinds unless it is said.
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

    /// Events that may wait until they are taken, [`EVENTS_MAX`] by default, and 16 MiB of keys. If there are more, all
    /// that wait are dropped and [`Event::Gap`] comes instead: the connection is shared, and is not held up for one reader.
    pub fn queue_len_max(mut self, queue_len_max: usize) -> Self {
        self.queue_len_max = queue_len_max;
        self
    }

    /// Begins. When this returns, no change that begins later is missed.
    ///
    /// # Errors
    ///
    /// If no server can be reached in time, or if the one that is refuses: it does not know the cache or a filter, or has
    /// too many listeners.
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

/// What a listener is told. When it is dropped, the listener ends.
///
/// Of each key, events come in the order of its changes. When the listener's server is lost there is [`Event::Gap`], and
/// another server is asked: what has changed between is told by nobody, and what has changed just before may be told again
/// in the state.
pub struct Events<K> {
    subscription: Subscription<Change>,
    decode: Box<DecodeKey<K>>,
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
                    let (key, version) = ((self.decode)(key)?, version.map(Version));
                    Event::Entry(EntryEvent { kind, key, version, is_repeated })
                }
                Delivery::Event(Change::Converted { kind, data }) => Event::Converted { kind, data },
                Delivery::Complete => Event::Complete,
                Delivery::Gap => Event::Gap,
            })
        };
        Poll::Ready(heard.map(|heard| heard.and_then(decoded)))
    }
}

impl<K> Events<K> {
    /// The next one; `None` after an error of the servers'. The stream's `next` for those who use no streams.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; what came before was right. If no server can be reached, or none takes the listener for a while, that
    /// is waited for, and is no error. After a failure of decoding the next one comes.
    pub async fn next(&mut self) -> Option<Result<Event<K>, ClientError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

/// A change, as it waits for the reader.
#[derive(Clone)]
enum Change {
    Key { kind: EventKind, key: Bytes, version: Option<i64>, is_repeated: bool },
    Converted { kind: EventKind, data: Bytes },
}

impl ByteSize for Change {
    fn bytes(&self) -> usize {
        match self {
            Self::Key { key: bytes, .. } | Self::Converted { data: bytes, .. } => bytes.len(),
        }
    }
}

/// The same bytes without those that they were received with.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Change {
    /// What is wanted of what is told: before 2.6, servers tell everything.
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
            EventData::Custom(data) | EventData::Raw(data) => Self::Converted { kind, data: own(data) },
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

    /// Being told of changes: of all keys unless said otherwise.
    pub fn listen(&self) -> ListenBuilder<K>
    where
        KE: Decode<K>,
    {
        let keys = self.keys.clone();
        ListenBuilder {
            listened: self.listened(),
            wanted: Wanted { with_state: false, filter: None, converter: None, interests: Interests::ALL },
            timeout: self.options().timeout,
            queue_len_max: EVENTS_MAX,
            decode: Box::new(move |key| Ok(keys.decode(key)?)),
        }
    }
}
