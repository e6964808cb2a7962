use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_group::{Address, AddressBook, PhysAddr, StateError, View};
use tokio::sync::{oneshot, watch};

use crate::catch_panic::ApplicationPanic;
use crate::gate::Gate;

pub(crate) struct Shared {
    pub(crate) local: Address,
    pub(crate) name: Arc<str>,
    pub(crate) phys: PhysAddr,
    pub(crate) cluster: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) view: watch::Sender<Option<View>>,
    pub(crate) book: Mutex<AddressBook>,
    pub(crate) next_ticket: AtomicU32,
    pub(crate) pending: Mutex<PendingCallers>,
}

/// Callers are woken outside the lock, because they may take it at once.
#[derive(Default)]
pub(crate) struct PendingCallers {
    pub(crate) connected: Option<oneshot::Sender<Result<(), String>>>,
    pub(crate) disconnected: Vec<oneshot::Sender<()>>,
    pub(crate) state: Option<oneshot::Sender<Result<IncomingState, StateError>>>,
    pub(crate) tickets: BTreeMap<u32, oneshot::Sender<bool>>,
}

pub(crate) struct IncomingState {
    pub(crate) state: Option<Bytes>,
    /// Completes when the receiver has taken the state.
    pub(crate) is_set: oneshot::Receiver<Result<(), ApplicationPanic>>,
}

impl Shared {
    pub(crate) fn new(local: Address, name: Arc<str>, phys: PhysAddr, cluster: &str) -> Self {
        Self {
            local,
            name,
            phys,
            cluster: cluster.into(),
            gate: Gate::default(),
            view: watch::Sender::new(None),
            book: Mutex::default(),
            next_ticket: AtomicU32::new(1),
            pending: Mutex::default(),
        }
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, PendingCallers> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_connected(&self) -> oneshot::Receiver<Result<(), String>> {
        let (done, wait) = oneshot::channel();
        self.pending().connected = Some(done);
        wait
    }
}
