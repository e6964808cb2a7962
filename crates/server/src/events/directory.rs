use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use consort_hotrod::Text;
use consort_hotrod::bloom::BloomFilter;
use consort_memory::Reservation;

use crate::events::push::EventTask;

pub(crate) type OfConnection = BTreeMap<Bytes, ListenerRegistration>;

/// Clients with several connections remove a listener on any of them.
#[derive(Clone, Default)]
pub(crate) struct ListenerDirectory(Arc<Mutex<BTreeMap<Bytes, Weak<Mutex<OfConnection>>>>>);

impl ListenerDirectory {
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeMap<Bytes, Weak<Mutex<OfConnection>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listeners, and near caches among them, by the clients' cache names.
    pub(crate) fn count(&self) -> BTreeMap<Text, (usize, usize)> {
        // The lock of a connection is not taken while the lock of the directory is held: connections take them in the other
        // order.
        let connections: Vec<Arc<Mutex<OfConnection>>> =
            self.all().values().filter_map(Weak::upgrade).collect();
        let (mut seen, mut counts) = (BTreeSet::new(), BTreeMap::<Text, (usize, usize)>::new());
        for connection in connections.iter().filter(|one| seen.insert(Arc::as_ptr(one))) {
            let of = connection.lock().unwrap_or_else(PoisonError::into_inner);
            for registration in of.values() {
                let (listeners, near) = counts.entry(registration.cache.clone()).or_default();
                *listeners += 1;
                *near += usize::from(registration.is_near);
            }
        }
        counts
    }

    pub(crate) fn remove(&self, cache: &Text, id: &Bytes) -> bool {
        let Some(listeners) = self.all().get(id).and_then(Weak::upgrade) else { return false };
        let is_removed = {
            let mut of = listeners.lock().unwrap_or_else(PoisonError::into_inner);
            of.get(id).is_some_and(|one| one.cache == *cache) && of.remove(id).is_some()
        };
        if is_removed {
            self.forget(id, &listeners);
        }
        is_removed
    }

    pub(crate) fn forget(&self, id: &Bytes, of: &Arc<Mutex<OfConnection>>) {
        let mut all = self.all();
        if all.get(id).is_some_and(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(of))) {
            all.remove(id);
        }
    }
}

pub(crate) struct ListenerRegistration {
    pub(crate) cache: Text,
    pub(crate) is_near: bool,
    pub(crate) near: Option<Arc<Mutex<BloomFilter>>>,
    pub(crate) _bytes: Option<Reservation>,
    pub(crate) task: EventTask,
}
