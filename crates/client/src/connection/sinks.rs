use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use consort_hotrod::ops::event::{CounterEvent, Event};

pub(crate) enum ServerEvent {
    Entry(Event),
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

/// The receiver of a listener's events. Called under the connection's lock, so it must be quick and not use the connection.
pub(crate) trait Sink: Send + Sync {
    /// Handles an event, in the connection's order of events and responses. Returns the task to wake.
    fn on_event(&self, event: ServerEvent) -> Option<Waker>;

    fn on_disconnect(&self) -> Option<Waker>;
}

#[derive(Default)]
pub(crate) struct Sinks(BTreeMap<Bytes, Arc<dyn Sink>>);

impl Sinks {
    pub(crate) fn add(&mut self, listener: Bytes, sink: Arc<dyn Sink>) {
        self.0.insert(listener, sink);
    }

    pub(crate) fn remove(&mut self, listener: &Bytes) {
        self.0.remove(listener);
    }

    pub(crate) fn dispatch(&self, event: ServerEvent) -> Option<Waker> {
        self.0.get(event.listener())?.on_event(event)
    }

    pub(crate) fn disconnect(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.0).into_values().filter_map(|sink| sink.on_disconnect())
    }
}
