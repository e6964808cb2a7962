use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use crate::catalog::caches::Caches;
use crate::compute_pool::processors;
use crate::events::push::{EventSender, Push};
use crate::limits::SCANS_PER_PROCESSOR;
use crate::memory::responses::Responses;
use crate::ops::counter_listeners::CounterListeners;
use crate::ops::iteration::Iterations;
use crate::ops::listeners::Listeners;
use crate::ops::value_streams::Streams;
use crate::security::access::Authorization;

pub(crate) struct Session {
    pub(crate) caches: Arc<Caches>,
    pub(crate) access: Authorization,
    pub(crate) iterations: Iterations,
    pub(crate) listeners: Listeners,
    pub(crate) counter_listeners: CounterListeners,
    pub(crate) streams: Streams,
    pub(crate) responses: Responses,
    pub(crate) events_out: EventSender,
    /// Permits for requests that read a whole cache.
    pub(crate) scans: Semaphore,
}

impl Session {
    pub(crate) fn new(caches: Arc<Caches>, access: Authorization) -> (Self, mpsc::Receiver<Push>) {
        let (events_out, pushes) = EventSender::new(caches.memory.events.clone());
        let session = Self {
            streams: Streams::new(caches.stream_budget.clone()),
            responses: Responses::new(&caches.memory),
            listeners: Listeners::new(
                events_out.clone(),
                caches.listeners.clone(),
                caches.memory.filters.clone(),
            ),
            caches,
            access,
            iterations: Iterations::default(),
            counter_listeners: CounterListeners::new(events_out.clone()),
            events_out,
            scans: Semaphore::new(SCANS_PER_PROCESSOR * processors()),
        };
        (session, pushes)
    }

    pub(crate) fn listener_count(&self) -> usize {
        self.listeners.count() + self.counter_listeners.count()
    }
}
