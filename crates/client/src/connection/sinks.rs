//! The receivers of a connection's events, by listener.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use consort_hotrod::ops::event::{CounterEvent, Event};

/// An event of a server.
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

/// The receiver of a listener's events. It is called under the connection's lock: it must be quick and must
/// not use the connection.
pub(crate) trait Sink: Send + Sync {
    /// Handles an event, in the connection's order of events and responses. Returns the task to wake.
    fn on_event(&self, event: ServerEvent) -> Option<Waker>;

    /// Handles the loss of the connection. Returns the task to wake.
    fn on_disconnect(&self) -> Option<Waker>;
}

/// The sinks of a connection, one per listener of the client; a server cannot add any.
#[derive(Default)]
pub(crate) struct Sinks(BTreeMap<Bytes, Arc<dyn Sink>>);

impl Sinks {
    /// Registers the sink of a listener.
    pub(crate) fn add(&mut self, listener: Bytes, sink: Arc<dyn Sink>) {
        self.0.insert(listener, sink);
    }

    pub(crate) fn remove(&mut self, listener: &Bytes) {
        self.0.remove(listener);
    }

    /// Passes an event to its sink; `None` for a listener that was removed.
    pub(crate) fn dispatch(&self, event: ServerEvent) -> Option<Waker> {
        self.0.get(event.listener())?.on_event(event)
    }

    /// Notifies all sinks of the loss of the connection. Returns the tasks to wake.
    pub(crate) fn disconnect(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.0).into_values().filter_map(|sink| sink.on_disconnect())
    }
}
