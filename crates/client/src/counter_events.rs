//! Changes of counters, as streams (facts section 2.14).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use consort_hotrod::ops::counter::{Action, Request};
use consort_hotrod::{MediaType, RequestBody};
use futures_core::Stream;

use crate::counter::Counter;
use crate::counter_listeners::{CounterChange, CounterValue};
use crate::error::ClientError;
use crate::limits::EVENTS_MAX;
use crate::registration::{ListenTarget, ListenedCache};
use crate::subscription::{Delivery, Subscription, SubscriptionSpec};

/// An event of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CounterEvent {
    /// The counter has changed.
    Changed {
        /// The previous value.
        old: CounterValue,
        /// The new value.
        new: CounterValue,
    },
    /// Changes may be missing: the server was lost, or the reader too slow. Read [`Counter::get`].
    Gap,
}

/// A listener under construction, from [`Counter::listen`].
#[must_use = "a listener does nothing before `start`"]
#[derive(Debug)]
pub struct CounterListenBuilder {
    counter: Counter,
    queue_len_max: usize,
}

impl CounterListenBuilder {
    /// Sets the queue's maximum length, by default [`EVENTS_MAX`]. On overflow one [`CounterEvent::Gap`] replaces the queue,
    /// because a slow reader must not block the shared connection.
    pub fn queue_len_max(mut self, queue_len_max: usize) -> Self {
        self.queue_len_max = queue_len_max;
        self
    }

    /// Starts the listener. It misses no change that begins later. A client has one listener per counter, because servers limit a
    /// connection's listeners.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCounter`]; [`ClientError::Unsupported`] before version 2.7; if no server is reachable in time, or the
    /// server refuses: it may have too many listeners.
    pub async fn start(self) -> Result<CounterEvents, ClientError> {
        let Self { counter, queue_len_max } = self;
        let (client, _) = counter.at();
        let listener = counter.listeners().listener(counter.name_text(), || counter.spec());
        Ok(CounterEvents {
            subscription: Subscription::of(client.clone(), listener, queue_len_max).await?,
            counter,
        })
    }
}

impl Counter {
    fn spec(&self) -> SubscriptionSpec<CounterChange> {
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
            timeout: client.settings.timeout,
            with_state: false,
            request: Box::new(move |id| {
                RequestBody::Counter(Request::Of(name.clone(), Action::AddListener(id)))
            }),
            to_event: Box::new(CounterChange::from_event),
        }
    }
}

/// A stream of a counter's events, in the order of the changes. The listener ends with the client's last stream of the counter.
///
/// A server may merge successive changes into one event; Consort's servers do. A lost server yields [`CounterEvent::Gap`] and a
/// registration with another one; changes in between are not delivered.
pub struct CounterEvents {
    subscription: Subscription<CounterChange>,
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
            Delivery::Event(CounterChange { old, new }) => CounterEvent::Changed { old, new },
            // Counters have no initial state.
            Delivery::Gap | Delivery::Complete => CounterEvent::Gap,
        })
    }
}

impl CounterEvents {
    /// Returns the next event, as the stream's `next`; `None` after a server's error.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; earlier events are valid. If no server is reachable or accepts the listener, the stream waits instead.
    pub async fn next(&mut self) -> Option<Result<CounterEvent, ClientError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Counter {
    /// Listens to all changes of the counter.
    pub fn listen(&self) -> CounterListenBuilder {
        CounterListenBuilder { counter: self.clone(), queue_len_max: EVENTS_MAX }
    }
}
