//! Being told what changes in a cache, as a stream (facts section 2.7).

mod queue;

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::Decode;
use consort_hotrod::ops::event::{self, EventData};
use consort_hotrod::ops::listener::{Factory, Interests, Listener, Request};
use futures_core::Stream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::bounds::{EVENTS_MAX, PAUSE_MAX, STATE_TIME_MAX};
use crate::cache::{Cache, Version};
use crate::client::Inner;
use crate::error::ClientError;
use crate::filter::{Filter, PARAMS_MAX};
use crate::pause::Pauses;
use crate::sinks::Sink;
use crate::standing::{Listened, Standing};
use queue::{Heard, Queue};

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
    listened: Listened,
    wanted: Wanted,
    timeout: Duration,
    events_max: usize,
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
    /// bytes as they are. Its first 255 parameters are given to it. Consort's servers have none, Infinispan's have
    /// `___eager-key-value-version-converter`.
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
    pub fn events_max(mut self, events_max: usize) -> Self {
        self.events_max = events_max;
        self
    }

    /// Begins. When this returns, no change that begins later is missed.
    ///
    /// # Errors
    ///
    /// If no server can be reached in time, or if the one that is refuses: it does not know the cache or a filter, or has
    /// too many listeners.
    pub async fn start(self) -> Result<Events<K>, ClientError> {
        let Self { listened, wanted, timeout: patience, events_max, decode } = self;
        let (begins, mut begun) = watch::channel(None);
        let queue = Arc::new(Queue::new(events_max));
        let keeper = Keeper {
            listened: listened.clone(),
            wanted,
            timeout: patience,
            queue: queue.clone(),
            begun: Arc::new(begins),
        };
        let task = listened.client.spawn(keeper.keep());
        let events = Events { client: listened.client.clone(), queue, task, decode };
        let outcome = match timeout(patience, begun.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone(),
            Ok(Err(_)) => Some(Err(ClientError::Closed)),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(())) => Ok(events),
            Some(Err(error)) => Err(error),
            None => Err(ClientError::TimedOut { after: patience, may_be_done: false }),
        }
    }
}

/// What a listener is told. When it is dropped, the listener ends.
///
/// Of each key, events come in the order of its changes. When the listener's server is lost there is [`Event::Gap`], and
/// another server is asked: what has changed between is told by nobody, and what has changed just before may be told again
/// in the state.
pub struct Events<K> {
    /// The connections go on as long as somebody listens.
    #[expect(dead_code, reason = "it is kept, not used")]
    client: Arc<Inner>,
    queue: Arc<Queue>,
    task: JoinHandle<()>,
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
        let heard = std::task::ready!(self.queue.poll(cx));
        let decoded = |heard| {
            Ok(match heard {
                Heard::Key { kind, key, version, is_repeated } => {
                    let (key, version) = ((self.decode)(key)?, version.map(Version));
                    Event::Entry(EntryEvent { kind, key, version, is_repeated })
                }
                Heard::Converted { kind, data } => Event::Converted { kind, data },
                Heard::Complete => Event::Complete,
                Heard::Gap => Event::Gap,
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

impl<K> Drop for Events<K> {
    /// With the task goes the listener.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What becomes of a listener's beginning, once that is known.
type Begun = watch::Sender<Option<Result<(), ClientError>>>;

/// What keeps a listener at some server.
struct Keeper {
    listened: Listened,
    wanted: Wanted,
    timeout: Duration,
    queue: Arc<Queue>,
    begun: Arc<Begun>,
}

/// Where one server's events go.
struct Ear {
    queue: Arc<Queue>,
    begun: Arc<Begun>,
    /// Told when something comes of what is there.
    heard: Arc<Notify>,
    lost: Arc<Notify>,
    /// What is wanted: before 2.6, servers tell everything.
    interests: Interests,
}

fn note_begun(begun: &Begun, outcome: Result<(), ClientError>) {
    begun.send_if_modified(|known| {
        let is_news = known.is_none();
        if is_news {
            *known = Some(outcome);
        }
        is_news
    });
}

const fn interest(kind: event::EventKind) -> u32 {
    match kind {
        event::EventKind::Created => Interests::CREATED,
        event::EventKind::Modified => Interests::MODIFIED,
        event::EventKind::Removed => Interests::REMOVED,
        event::EventKind::Expired => Interests::EXPIRED,
    }
}

/// The same bytes without those that they were received with.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Sink for Ear {
    fn tell(&self, event: event::Event) -> Option<Waker> {
        let is_state = event.id != 0;
        if is_state {
            // Who tells what was there tells changes, too.
            note_begun(&self.begun, Ok(()));
            self.heard.notify_one();
        }
        if !self.interests.contains(interest(event.kind)) {
            return None;
        }
        let kind = match event.kind {
            event::EventKind::Created if is_state => EventKind::Existing,
            event::EventKind::Created => EventKind::Created,
            event::EventKind::Modified => EventKind::Modified,
            event::EventKind::Removed => EventKind::Removed,
            event::EventKind::Expired => EventKind::Expired,
        };
        self.queue.push(match &event.data {
            EventData::Key(key, version) => {
                Heard::Key { kind, key: own(key), version: *version, is_repeated: event.is_retried }
            }
            EventData::Custom(data) | EventData::Raw(data) => Heard::Converted { kind, data: own(data) },
        })
    }

    fn lose(&self) -> Option<Waker> {
        self.lost.notify_one();
        // Before it has begun nothing was promised.
        let has_begun = self.begun.borrow().is_some();
        if has_begun { self.queue.push(Heard::Gap) } else { None }
    }
}

/// Whether other attempts would have the same outcome, once there has been another.
const fn is_final(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Closed
            | ClientError::NoSuchCache(_)
            | ClientError::Denied { .. }
            | ClientError::Unsupported { .. }
    )
}

impl Keeper {
    fn request(&self, id: Bytes) -> Request {
        let Wanted { with_state, filter, converter, interests } = self.wanted.clone();
        Request::Add(Listener {
            id,
            includes_state: with_state,
            is_raw: filter.is_some() || converter.is_some(),
            filter,
            converter,
            interests,
        })
    }

    /// Adds the listener somewhere. A server that tells what is there may take as long as it goes on telling.
    async fn add(&self) -> Result<Standing, ClientError> {
        let timeout = if self.wanted.with_state { self.timeout.max(STATE_TIME_MAX) } else { self.timeout };
        let heard = Arc::new(Notify::new());
        let ear = |lost| -> Arc<dyn Sink> {
            let (queue, begun, heard) = (self.queue.clone(), self.begun.clone(), heard.clone());
            Arc::new(Ear { queue, begun, heard, lost, interests: self.wanted.interests })
        };
        let mut adding = pin!(self.listened.add(|id| self.request(id), timeout, |_, lost| ear(lost)));
        loop {
            tokio::select! {
                added = &mut adding => return added,
                () = heard.notified() => {}
                () = tokio::time::sleep(self.timeout) => {
                    return Err(ClientError::TimedOut { after: self.timeout, may_be_done: false });
                }
            }
        }
    }

    async fn keep(self) {
        let mut pauses = Pauses::new(RandomState::new().build_hasher().finish());
        loop {
            let added = self.add().await;
            match added {
                Ok(standing) => {
                    note_begun(&self.begun, Ok(()));
                    if self.wanted.with_state {
                        wake(self.queue.push(Heard::Complete));
                    }
                    let since = self.listened.client.clock.now();
                    standing.lost().await;
                    if self.listened.client.clock.now() - since >= PAUSE_MAX {
                        pauses.reset();
                        continue;
                    }
                }
                Err(error) if self.begun.borrow().is_some() && !is_final(&error) => {
                    tracing::debug!(%error, "a listener has no server");
                    // Some of the state may have come.
                    wake(self.queue.push(Heard::Gap));
                }
                Err(error) => {
                    wake(self.queue.end(error.clone()));
                    note_begun(&self.begun, Err(error));
                    return;
                }
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    pub(crate) fn listened(&self) -> Listened {
        Listened {
            client: self.client.clone(),
            cache: self.state.clone(),
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
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
            events_max: EVENTS_MAX,
            decode: Box::new(move |key| Ok(keys.decode(key)?)),
        }
    }
}
