//! Messages that wait for a bridge, by site master, so that a slow site delays none to others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use consort_group::{Address, Message};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_WAIT_BYTES};
use crate::channel::Channel;
use crate::gate::weight;
use crate::receiver::Credit;
use crate::warnings::Warnings;

/// A message, and the credit of its sender, which a drop returns.
struct Waiting {
    message: Message,
    bytes: u64,
    _credit: Option<Credit>,
}

/// The header counts, too: it has the application's headers and the names of sites, which peers choose.
fn bytes_of(message: &Message) -> u64 {
    weight(message.length() + message.headers_length())
}

/// A bridge, how often it has been closed, and a site master.
type Key = (usize, u64, Address);

struct Queues {
    /// The open bridges.
    bridges: BTreeMap<usize, Channel>,
    /// How often bridges have been closed.
    closings: u64,
    /// A queue is present while a task sends its messages, or while its bridge is being opened.
    waiting: BTreeMap<Key, VecDeque<Waiting>>,
    bytes: u64,
    dropped: u64,
    warnings: Warnings,
}

/// All queues of a member, bounded by [`OUTBOUND_BYTES_MAX`].
#[derive(Clone)]
pub(super) struct Outbound {
    queues: Arc<Mutex<Queues>>,
    has_room: Arc<Notify>,
    runtime: Handle,
}

impl Outbound {
    pub(super) fn new(runtime: Handle) -> Self {
        let queues = Queues {
            bridges: BTreeMap::new(),
            closings: 0,
            waiting: BTreeMap::new(),
            bytes: 0,
            dropped: 0,
            warnings: Warnings::new(),
        };
        Self { queues: Arc::new(Mutex::new(queues)), has_room: Arc::default(), runtime }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages wait from the bridge's first view on.
    pub(super) fn open(&self, bridge: usize, channel: Channel) {
        let mut queues = self.lock();
        let keys: Vec<Key> = queues.waiting.keys().filter(|(of, ..)| *of == bridge).cloned().collect();
        queues.bridges.insert(bridge, channel.clone());
        drop(queues);
        for key in keys {
            self.start(key, channel.clone());
        }
    }

    /// Drops what waits for the bridge, and returns its channel.
    pub(super) fn close(&self, bridge: usize) -> Option<Channel> {
        let mut queues = self.lock();
        queues.closings += 1;
        let (dropped, kept) =
            std::mem::take(&mut queues.waiting).into_iter().partition(|((of, ..), _)| *of == bridge);
        queues.waiting = kept;
        let dropped: BTreeMap<Key, VecDeque<Waiting>> = dropped;
        for one in dropped.values().flatten() {
            queues.bytes -= one.bytes;
            queues.dropped += 1;
        }
        let channel = queues.bridges.remove(&bridge);
        drop(queues);
        self.has_room.notify_waiters();
        channel
    }

    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Called by the driver of the site's member: it must not wait.
    pub(super) fn push(&self, bridge: usize, message: Message, credit: Option<Credit>) {
        let Some(dest) = message.dest.clone() else { return };
        let bytes = bytes_of(&message);
        let mut queues = self.lock();
        if queues.bytes + bytes > OUTBOUND_BYTES_MAX {
            queues.dropped += 1;
            return queues.warnings.count(Instant::now(), "bridge is too slow", || {
                format!("{OUTBOUND_BYTES_MAX} bytes wait for bridges: a message to {dest} is dropped")
            });
        }
        queues.bytes += bytes;
        let waiting = Waiting { message, bytes, _credit: credit };
        let key = (bridge, queues.closings, dest);
        if let Some(queue) = queues.waiting.get_mut(&key) {
            return queue.push_back(waiting);
        }
        queues.waiting.insert(key.clone(), VecDeque::from([waiting]));
        let channel = queues.bridges.get(&bridge).cloned();
        drop(queues);
        if let Some(channel) = channel {
            self.start(key, channel);
        }
    }

    fn start(&self, key: Key, channel: Channel) {
        let this = self.clone();
        self.runtime.spawn(async move { this.send_all(key, channel).await });
    }

    async fn send_all(&self, key: Key, channel: Channel) {
        loop {
            let next = {
                let mut queues = self.lock();
                let next = queues.waiting.get_mut(&key).and_then(VecDeque::pop_front);
                if next.is_none() {
                    queues.waiting.remove(&key);
                }
                next
            };
            let Some(Waiting { message, bytes, _credit }) = next else { return };
            // A closed bridge has dropped the queue.
            let _ = Box::pin(channel.send(message)).await;
            self.lock().bytes -= bytes;
            self.has_room.notify_waiters();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.lock().bytes < OUTBOUND_WAIT_BYTES
    }

    /// Waits until the application of the site master may send.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let notified = self.has_room.notified();
            if self.has_room() {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use consort_group::{HeaderBody, ProtocolId, RelayHeader, relay_kind};

    use super::*;

    #[tokio::test]
    async fn messages_beyond_the_bytes_of_all_bridges_are_dropped_until_one_is_closed() {
        const PARTS: u64 = 8;
        let part = vec![0; (OUTBOUND_BYTES_MAX / PARTS) as usize - 1_000];
        let part = bytes::Bytes::from(part);
        let outbound = Outbound::new(Handle::current());
        let push = |bridge: usize, site: &str| {
            outbound.push(bridge, Message::bytes(Some(Address::site_master(site)), part.clone()), None);
        };
        assert!(outbound.has_room());
        (1..PARTS).for_each(|_| push(0, "nyc"));
        push(1, "sfo");
        assert!(!outbound.has_room());
        assert_eq!(outbound.dropped(), 0);
        (0..3).for_each(|_| push(1, "sfo"));
        assert_eq!(outbound.dropped(), 3, "they would be one part too many");
        assert_eq!(outbound.lock().warnings.counts(), [("bridge is too slow", 3)]);
        assert!(outbound.close(0).is_none());
        assert_eq!(outbound.dropped(), 3 + PARTS - 1, "what waited for the bridge");
        assert_eq!(outbound.lock().bytes, weight(part.len()));
        (1..PARTS).for_each(|_| push(0, "nyc"));
        assert_eq!(outbound.dropped(), 3 + PARTS - 1);
        (0..2).for_each(|bridge| _ = outbound.close(bridge));
        assert_eq!(outbound.lock().bytes, 0);
        assert!(outbound.has_room());
    }

    #[test]
    fn names_in_the_header_fill_the_queues() {
        let mut header = RelayHeader::new(relay_kind::DATA, None, None);
        let plain = Message::bytes(None, "x")
            .with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header.clone())));
        header.visited = vec![Some("x".repeat(1_000)); 100];
        let full =
            Message::bytes(None, "x").with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)));
        assert!(bytes_of(&full) >= bytes_of(&plain).max(100_000));
    }
}
