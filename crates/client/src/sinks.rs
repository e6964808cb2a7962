//! Who hears of a connection's events, by listener.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use consort_hotrod::ops::event::{CounterEvent, Event};

/// What a server says unasked.
pub(crate) enum ServerEvent {
    /// An entry has changed.
    Entry(Event),
    /// A counter has changed.
    Counter(CounterEvent),
}

impl ServerEvent {
    const fn listener(&self) -> &Bytes {
        match self {
            Self::Entry(event) => &event.listener,
            Self::Counter(event) => &event.listener,
        }
    }
}

/// Somebody who is told of a listener's events, with the connection's lock held: it must be quick, and may not use the
/// connection.
pub(crate) trait Sink: Send + Sync {
    /// An event, in the order in which the connection has it among events and answers. Who is to be woken.
    fn on_event(&self, event: ServerEvent) -> Option<Waker>;

    /// The connection is lost, and nothing more comes. Who is to be woken.
    fn on_disconnect(&self) -> Option<Waker>;
}

/// The sinks of a connection. Each is of a listener that the client has added, so that a server cannot make them grow.
#[derive(Default)]
pub(crate) struct Sinks(BTreeMap<Bytes, Arc<dyn Sink>>);

impl Sinks {
    /// From now on, events of this listener are told.
    pub(crate) fn add(&mut self, listener: Bytes, sink: Arc<dyn Sink>) {
        self.0.insert(listener, sink);
    }

    pub(crate) fn remove(&mut self, listener: &Bytes) {
        self.0.remove(listener);
    }

    /// Events of a listener that was removed may still come.
    pub(crate) fn dispatch(&self, event: ServerEvent) -> Option<Waker> {
        self.0.get(event.listener())?.on_event(event)
    }

    /// No more events come. Who is to be woken.
    pub(crate) fn disconnect(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.0).into_values().filter_map(|sink| sink.on_disconnect())
    }
}
