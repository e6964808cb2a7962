//! The connections of Hot Rod clients, for operators. Their number is bounded by that of all connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A count with one writer, the connection's task, so that it needs no atomic addition.
#[derive(Default)]
struct OwnCount(AtomicU64);

impl OwnCount {
    fn add(&self, count: usize) {
        self.0.store(self.get().wrapping_add(count as u64), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct ClientTraffic {
    requests: OwnCount,
    received: OwnCount,
    sent: OwnCount,
    /// Of the last request, as its byte.
    version: AtomicU8,
}

impl ClientTraffic {
    pub(crate) fn request(&self) {
        self.requests.add(1);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.add(bytes);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.add(bytes);
    }

    pub(crate) fn version(&self, version: u8) {
        self.version.store(version, Ordering::Relaxed);
    }
}

pub(crate) struct ConnectedClient {
    pub(crate) peer: Option<SocketAddr>,
    /// `None` on a server without users.
    pub(crate) user: Option<Arc<str>>,
    pub(crate) since: SystemTime,
    pub(crate) listeners: Box<dyn Fn() -> usize + Send + Sync>,
}

/// A client at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientRow {
    pub(crate) id: u64,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) since: SystemTime,
    pub(crate) requests: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) version: u8,
    pub(crate) listeners: usize,
}

type Clients = BTreeMap<u64, (ConnectedClient, Arc<ClientTraffic>)>;

#[derive(Default)]
pub(crate) struct ClientDirectory {
    last: AtomicU64,
    all: Mutex<Clients>,
}

/// Dropping it removes the client.
pub(crate) struct RegisteredClient<'a> {
    directory: &'a ClientDirectory,
    id: u64,
}

impl ClientDirectory {
    fn all(&self) -> MutexGuard<'_, Clients> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(
        &self,
        client: ConnectedClient,
        traffic: Arc<ClientTraffic>,
    ) -> RegisteredClient<'_> {
        let id = 1 + self.last.fetch_add(1, Ordering::Relaxed);
        self.all().insert(id, (client, traffic));
        RegisteredClient { directory: self, id }
    }

    /// At most `max` clients with higher ids than `after`, in the order of their connections.
    pub(crate) fn page(&self, after: u64, max: usize) -> Vec<ClientRow> {
        let row = |(id, (client, traffic)): (&u64, &(ConnectedClient, Arc<ClientTraffic>))| ClientRow {
            id: *id,
            peer: client.peer,
            user: client.user.clone(),
            since: client.since,
            requests: traffic.requests.get(),
            received: traffic.received.get(),
            sent: traffic.sent.get(),
            version: traffic.version.load(Ordering::Relaxed),
            listeners: (client.listeners)(),
        };
        self.all().range((Bound::Excluded(after), Bound::Unbounded)).take(max).map(row).collect()
    }
}

impl Drop for RegisteredClient<'_> {
    fn drop(&mut self) {
        // Dropped outside of the lock, because the closure may own more than it seems.
        let removed = self.directory.all().remove(&self.id);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: u16) -> ConnectedClient {
        ConnectedClient {
            peer: Some(SocketAddr::from(([10, 0, 0, 1], port))),
            user: Some("alice".into()),
            since: SystemTime::UNIX_EPOCH,
            listeners: Box::new(move || usize::from(port)),
        }
    }

    #[test]
    fn clients_are_listed_in_pages_until_they_go() {
        let directory = ClientDirectory::default();
        let traffic = Arc::new(ClientTraffic::default());
        let kept: Vec<_> = (1..=5).map(|port| directory.register(client(port), traffic.clone())).collect();
        traffic.request();
        traffic.received(10);
        traffic.sent(20);
        traffic.sent(1);
        traffic.version(41);
        let ids = |rows: &[ClientRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        let page = directory.page(0, 2);
        assert_eq!(ids(&page), [1, 2]);
        let ClientRow { requests, received, sent, version, listeners, .. } = page[1];
        assert_eq!((requests, received, sent, version, listeners), (1, 10, 21, 41, 2));
        assert_eq!(page[1].user.as_deref(), Some("alice"));
        drop(kept.into_iter().nth(2));
        assert_eq!(ids(&directory.page(0, 9)), [] as [u64; 0], "all guards are gone");
    }

    #[test]
    fn page_continues_after_clients_that_have_gone() {
        let directory = ClientDirectory::default();
        let [first, second, third] =
            [1, 2, 3].map(|port| directory.register(client(port), Arc::new(ClientTraffic::default())));
        drop(second);
        assert_eq!(directory.page(2, 9).iter().map(|row| row.id).collect::<Vec<_>>(), [3]);
        assert_eq!(directory.page(3, 9), []);
        drop((first, third));
        assert_eq!(directory.page(0, 9), []);
    }
}
