//! Being told how a counter changes, as a stream (facts section 2.14).

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use consort_hotrod::ops::counter::{Action, Request};
use consort_hotrod::ops::event::CounterState;
use consort_hotrod::{MediaType, RequestBody, Text};
use futures_core::Stream;

use crate::limits::{EVENTS_MAX, TIMEOUT};
use crate::counter::Counter;
use crate::error::ClientError;
use crate::subscription::{Delivery, Subscription, SharedListener, ByteSize, SubscriptionSpec};
use crate::sinks::Told;
use crate::registration::{ListenedCache, ListenTarget};

/// What a counter has, or had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterValue {
    /// Its value.
    pub value: i64,
    /// Whether somebody wanted to take it past one of its bounds, where it stays then. Only bounded ones have others than
    /// [`CounterState::Valid`].
    pub state: CounterState,
}

/// What a counter's listener is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CounterEvent {
    /// It has changed.
    Changed {
        /// What it had.
        old: CounterValue,
        /// What it has.
        new: CounterValue,
    },
    /// Changes before this may not have been told: the listener's server was lost, or its reader was too slow. What the
    /// counter has by now, [`Counter::get`] tells.
    Gap,
}

/// How a counter is listened to. From [`Counter::listen`].
#[must_use = "nothing is told before it is started"]
#[derive(Debug)]
pub struct CounterListenBuilder {
    counter: Counter,
    queue_len_max: usize,
}

impl CounterListenBuilder {
    /// Events that may wait until they are taken, [`EVENTS_MAX`] by default. If there are more, all that wait are dropped and
    /// [`CounterEvent::Gap`] comes instead: the connection is shared, and is not held up for one reader.
    pub fn queue_len_max(mut self, queue_len_max: usize) -> Self {
        self.queue_len_max = queue_len_max;
        self
    }

    /// Begins. When this returns, no change that begins later is missed. All who listen to a counter through one client have
    /// one listener at the servers, which take few of them on a connection.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCounter`], [`ClientError::Unsupported`] before 2.7; if no server can be reached in time, or the one
    /// that is refuses: it may have too many listeners.
    pub async fn start(self) -> Result<CounterEvents, ClientError> {
        let Self { counter, queue_len_max } = self;
        let (client, _) = counter.at();
        let listener = client.counter_listeners.listener(counter.name_text(), || counter.spec());
        Ok(CounterEvents { subscription: Subscription::of(client.clone(), listener, queue_len_max).await?, counter })
    }
}

/// The counters to which somebody listens through a client, each with its listener. There is one for each name that the
/// application listens to; those that have ended go when another one begins.
#[derive(Default)]
pub(crate) struct CounterListenerTable(Mutex<BTreeMap<Text, Weak<SharedListener<Change>>>>);

impl CounterListenerTable {
    /// A counter's listener, which begins if there is none.
    fn listener(&self, name: &Text, spec: impl FnOnce() -> SubscriptionSpec<Change>) -> Arc<SharedListener<Change>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = all.get(name).and_then(Weak::upgrade).filter(|listener| !listener.has_ended()) {
            return listener;
        }
        all.retain(|_, listener| listener.strong_count() > 0);
        let listener = SharedListener::begin(spec());
        all.insert(name.clone(), Arc::downgrade(&listener));
        listener
    }
}

impl Counter {
    fn spec(&self) -> SubscriptionSpec<Change> {
        let name = self.name_text().clone();
        let (client, cache) = self.at();
        SubscriptionSpec {
            listened: ListenedCache {
                client: client.clone(),
                cache: cache.clone(),
                key_type: MediaType::Unspecified,
                value_type: MediaType::Unspecified,
                subject: ListenTarget::Counter(name.clone()),
            },
            timeout: TIMEOUT,
            with_state: false,
            request: Box::new(move |id| {
                RequestBody::Counter(Request::Of(name.clone(), Action::AddListener(id)))
            }),
            to_event: Box::new(Change::from_event),
        }
    }
}

/// A change, as it waits for the reader.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    old: CounterValue,
    new: CounterValue,
}

impl ByteSize for Change {
    /// Servers cannot make it larger.
    fn bytes(&self) -> usize {
        0
    }
}

impl Change {
    fn from_event(event: ServerEvent) -> Option<Self> {
        let ServerEvent::Counter(event) = event else { return None };
        let value = |(value, state)| CounterValue { value, state };
        Some(Self { old: value(event.old), new: value(event.new) })
    }
}

/// What a counter's listener is told. When the last one of a client's is dropped, the listener ends.
///
/// Events come in the order of the changes. Servers may tell changes that follow each other quickly as one, from what the
/// counter had when it was told of last to what it has; Consort's do. When the listener's server is lost there is
/// [`CounterEvent::Gap`], and another server is asked: what has changed between is told by nobody.
pub struct CounterEvents {
    subscription: Subscription<Change>,
    counter: Counter,
}

impl fmt::Debug for CounterEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "events of {:?}", self.counter)
    }
}

impl Stream for CounterEvents {
    type Item = Result<CounterEvent, ClientError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.subscription.poll(cx).map_ok(|delivery| match delivery {
            Delivery::Event(Change { old, new }) => CounterEvent::Changed { old, new },
            // Counters have no state that is told first.
            Delivery::Gap | Delivery::Complete => CounterEvent::Gap,
        })
    }
}

impl CounterEvents {
    /// The next one; `None` after an error of the servers'. The stream's `next` for those who use no streams.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; what came before was right. If no server can be reached, or none takes the listener for a while, that
    /// is waited for, and is no error.
    pub async fn next(&mut self) -> Option<Result<CounterEvent, ClientError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Counter {
    /// Being told how it changes, whoever changes it.
    pub fn listen(&self) -> CounterListenBuilder {
        CounterListenBuilder { counter: self.clone(), queue_len_max: EVENTS_MAX }
    }
}
