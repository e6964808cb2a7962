//! Listeners: the changes of a cache as a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use consort_grid::{
    EntryEvent, Event, ListenError, ListenOptions, ListenerId, OperationError, Previous, Scope, TakenEvents,
    Transform,
};
use futures_core::Stream;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::open_cache::OpenCache;
use consort_encoding::Decode;

type DecodeEvent<K, V> = dyn Fn(Event) -> Result<Event<K, V>, CacheError> + Send;

/// A listener's options, from [`Cache::listen`].
#[must_use = "a listener gets no event before it is started"]
pub struct ListenBuilder<K, V> {
    handler: Arc<GridHandler>,
    opened: Arc<OpenCache>,
    options: ListenOptions,
    decode: Box<DecodeEvent<K, V>>,
}

impl<K, V> fmt::Debug for ListenBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener of {} with {:?}", self.opened.config.name, self.options)
    }
}

impl<K, V> ListenBuilder<K, V> {
    /// Delivers only changes that this member orders, as the primary of their keys, without a message: with
    /// such a listener on every member, each change is delivered on one of them. Changes that a lost member
    /// had ordered and not finished are not delivered.
    pub fn local(mut self) -> Self {
        self.options.scope = Scope::Local;
        self
    }

    /// Delivers the present entries first, then [`Event::Complete`], and again after a gap; changes meanwhile
    /// are delivered at once.
    pub fn with_state(mut self) -> Self {
        self.options.with_state = true;
        self
    }

    /// Delivers only keys and versions; values are not transferred.
    pub fn keys_only(mut self) -> Self {
        self.options.with_values = false;
        self
    }

    /// Delivers the unchanged previous value with each change; not with a transform. While a listener has
    /// this option, primaries send the previous value with every write of the cache.
    pub fn with_previous(mut self) -> Self {
        self.options.with_previous = true;
        self
    }

    /// Filters and maps events with this transform: see [`Cache::register_transform`]. A removal is an entry
    /// with an empty value.
    pub fn transform(mut self, name: &str, arguments: impl Into<Bytes>) -> Self {
        self.options.transform = Some(Transform { name: name.into(), arguments: arguments.into() });
        self
    }

    /// Sets the limit of events that wait for the reader, [`consort_grid::EVENTS_MAX`] by default. Beyond it
    /// [`Event::Gap`] replaces events.
    pub fn events_max(mut self, events_max: usize) -> Self {
        self.options.events_max = events_max;
        self
    }

    /// Starts the listener. When this returns, no change that begins later is missed.
    ///
    /// # Errors
    ///
    /// [`CacheError::Listener`] if a transform is not registered here; as an operation while primaries are
    /// unreachable, or if the cache is closed. No listener is added then.
    pub async fn start(self) -> Result<Events<K, V>, CacheError> {
        let (cache, options) = (self.opened.id, self.options.clone());
        let begun = self.handler.with_node(|node, now| node.listen(now, cache, options));
        let id =
            begun.unwrap_or(Err(OperationError::Closed.into())).map_err(|error| self.handler.named(error))?;
        let Self { handler, opened, decode, .. } = self;
        let events = Events { handler, opened, id, waiting: TakenEvents::empty(), is_over: false, decode };
        std::future::poll_fn(|cx| events.handler.poll_listening(cache, id, cx)).await?;
        Ok(events)
    }
}

/// The events of a listener, which ends when this is dropped.
///
/// Events of a key are in the order of their versions. Every acknowledged change is delivered once, whatever
/// members join, leave or crash: when two members have it, and before it is acknowledged. [`Event::Gap`]
/// marks places where changes may be missing.
pub struct Events<K, V> {
    handler: Arc<GridHandler>,
    opened: Arc<OpenCache>,
    id: ListenerId,
    waiting: TakenEvents,
    is_over: bool,
    decode: Box<DecodeEvent<K, V>>,
}

impl<K, V> fmt::Debug for Events<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events of {}", self.opened.config.name)
    }
}

impl<K, V> Stream for Events<K, V> {
    type Item = Result<Event<K, V>, CacheError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.waiting.next() {
                return Poll::Ready(Some((self.decode)(event)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match std::task::ready!(self.handler.poll_events(self.opened.id, self.id, cx)) {
                Ok(events) => self.waiting = events,
                Err(error) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }
}

impl<K, V> Events<K, V> {
    /// Returns the next event; `None` after an error of the cluster.
    ///
    /// # Errors
    ///
    /// [`CacheError`]; the events before are valid. After a decoding error the next event follows.
    pub async fn next(&mut self) -> Option<Result<Event<K, V>, CacheError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<K, V> Drop for Events<K, V> {
    fn drop(&mut self) {
        self.handler.end_listener(self.opened.id, self.id);
    }
}

impl<K, V, KE, VE> Cache<K, V, KE, VE> {
    /// Returns a builder of a listener: for all keys and with values by default. If a transform returns
    /// values of another type, listen on a handle with that type.
    pub fn listen(&self) -> ListenBuilder<K, V>
    where
        KE: Decode<K>,
        VE: Decode<V>,
    {
        let (keys, values) = (self.codec.keys().clone(), self.codec.values().clone());
        let decode = move |event| {
            Ok(match event {
                Event::Complete => Event::Complete,
                Event::Gap => Event::Gap,
                Event::Entry(EntryEvent { kind, key, value, previous, version }) => {
                    let before = |Previous { value, version }| {
                        Ok::<_, CacheError>(Previous { value: values.decode(value)?, version })
                    };
                    Event::Entry(EntryEvent {
                        kind,
                        key: keys.decode(key)?,
                        value: value.map(|value| values.decode(value)).transpose()?,
                        previous: previous.map(before).transpose()?,
                        version,
                    })
                }
            })
        };
        ListenBuilder {
            handler: self.encoded.handler.clone(),
            opened: self.encoded.opened.clone(),
            options: ListenOptions::default(),
            decode: Box::new(decode),
        }
    }
}

impl From<ListenError> for CacheError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Operation(error) => error.into(),
            ListenError::State(error) => error.into(),
            error => Self::Listener(error),
        }
    }
}
