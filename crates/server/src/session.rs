//! What a connection has begun and not ended: it goes with it.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use tokio::sync::{Semaphore, mpsc};

use crate::caches::Caches;
use crate::counter_listeners::CounterListeners;
use crate::gathering::Responses;
use crate::iteration::Iterations;
use crate::listeners::Listeners;
use crate::security::access::Access;
use crate::streams::Streams;
use crate::unasked::{Outlet, Unasked};

/// A client's connection, as its requests see it.
pub(crate) struct Session {
    pub(crate) caches: Arc<Caches>,
    pub(crate) access: Access,
    pub(crate) iterations: Iterations,
    pub(crate) listeners: Listeners,
    pub(crate) counter_listeners: CounterListeners,
    pub(crate) streams: Streams,
    pub(crate) responses: Responses,
    pub(crate) outlet: Outlet,
    /// Permits for requests that read a whole cache. Without them, the tasks of one connection's pipelined requests fill the
    /// queues of all threads, and requests of other connections wait behind them.
    pub(crate) scans: Semaphore,
}

/// Scans of a connection at a time, for each processor: enough to use all of them while some scans wait for other members.
const SCANS_PER_PROCESSOR: usize = 2;

impl Session {
    /// And what its client is told unasked.
    pub(crate) fn new(caches: Arc<Caches>, access: Access) -> (Self, mpsc::Receiver<Unasked>) {
        let (outlet, unasked) = Outlet::new(caches.memory.events.clone());
        let session = Self {
            streams: Streams::new(caches.unfinished.clone()),
            responses: Responses::new(&caches.memory),
            listeners: Listeners::new(
                outlet.clone(),
                caches.listeners.clone(),
                caches.memory.filters.clone(),
            ),
            caches,
            access,
            iterations: Iterations::default(),
            counter_listeners: CounterListeners::new(outlet.clone()),
            outlet,
            scans: Semaphore::new(SCANS_PER_PROCESSOR * processors()),
        };
        (session, unasked)
    }
}

/// Returns the number of processors of the process; 1 if it is unknown.
fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    *PROCESSORS
}
