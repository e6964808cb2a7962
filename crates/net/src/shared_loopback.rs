//! `SHARED_LOOPBACK`: members of a process exchange packets in memory, for tests and benches.
//!
//! Members with the same multicast address and port are one network. A packet that does not fit a queue is dropped and counted.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use consort_group::{PhysAddr, Time, Transmit, TransmitDest};

use crate::config::TransportConfig;
use crate::edge::{Edge, Inbound};
use crate::inbox::{BYTES_MAX, Inbox};
use crate::signals::{Key, Owner, Signals, SourceWaker};
use crate::stats::EdgeStats;
use crate::warnings::RateLimitedWarnings;

/// The bound per cycle keeps timers from starving.
const PACKETS_PER_CYCLE: usize = 256;

type Network = (IpAddr, u16);

/// The members of all networks of the process.
static MEMBERS: Mutex<BTreeMap<(Network, u16), Arc<Inbox>>> = Mutex::new(BTreeMap::new());

fn members() -> MutexGuard<'static, BTreeMap<(Network, u16), Arc<Inbox>>> {
    MEMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The member takes no packets yet.
pub(crate) struct BoundShared {
    network: Network,
    port: u16,
    inbox: Arc<Inbox>,
}

impl BoundShared {
    pub(crate) fn bind(config: &TransportConfig) -> Self {
        let network = (config.mcast_addr, config.mcast_port);
        let inbox = Arc::new(Inbox::default());
        let mut members = members();
        let first = config.bind_port.max(1);
        let port = (first..=u16::MAX).find(|&port| !members.contains_key(&(network, port))).unwrap_or(first);
        members.insert((network, port), inbox.clone());
        Self { network, port, inbox }
    }

    pub(crate) fn own(&self) -> PhysAddr {
        own(self.port)
    }

    pub(crate) fn open(self, signals: &Arc<Signals>) -> SharedEdge {
        let waker = SourceWaker::waker(signals, Key { owner: Owner::Edge, index: 0 });
        self.inbox.set_waker(Some(waker.clone()));
        SharedEdge {
            bound: self,
            waker,
            half_full: Vec::new(),
            has_more: true,
            taken: Vec::new(),
            outbox: Vec::new(),
            warnings: RateLimitedWarnings::default(),
            stats: EdgeStats::default(),
        }
    }
}

impl Drop for BoundShared {
    fn drop(&mut self) {
        let mut members = members();
        let key = (self.network, self.port);
        if members.get(&key).is_some_and(|inbox| Arc::ptr_eq(inbox, &self.inbox)) {
            members.remove(&key);
        }
        drop(members);
        self.inbox.close();
    }
}

fn own(port: u16) -> PhysAddr {
    PhysAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub(crate) struct SharedEdge {
    bound: BoundShared,
    waker: Waker,
    /// As of the last send or check.
    half_full: Vec<(u16, Arc<Inbox>)>,
    has_more: bool,
    taken: Vec<(PhysAddr, Bytes)>,
    outbox: Vec<Transmit>,
    warnings: RateLimitedWarnings,
    stats: EdgeStats,
}

impl SharedEdge {
    fn receive(&mut self, inbound: Inbound<'_>) {
        self.has_more = self.bound.inbox.take(PACKETS_PER_CYCLE, &mut self.taken);
        self.stats.reads += 1;
        for (from, packet) in self.taken.drain(..) {
            self.stats.packets_in += 1;
            self.stats.bytes_in += packet.len() as u64;
            inbound(from, packet);
        }
    }

    fn deliver(&mut self, now: Time, port: u16, to: &Arc<Inbox>, packet: Bytes) {
        self.stats.packets_out += 1;
        self.stats.bytes_out += packet.len() as u64;
        let pushed = to.push([(self.bound.own(), packet)]);
        if pushed.is_half_full && !self.half_full.iter().any(|(_, known)| Arc::ptr_eq(known, to)) {
            self.half_full.push((port, to.clone()));
        }
        if pushed.dropped > 0 {
            self.stats.dropped += 1;
            self.warnings.count(now, "peer_queue_full", || "a member does not take its packets".into());
        }
    }

    fn find(&self, peer: PhysAddr) -> Option<Arc<Inbox>> {
        let is_other = peer != self.bound.own();
        members().get(&(self.bound.network, peer.port)).filter(|_| is_other).cloned()
    }

    fn others(&self) -> Vec<(u16, Arc<Inbox>)> {
        let (network, own) = (self.bound.network, self.bound.port);
        let range = (network, 0)..=(network, u16::MAX);
        let others = members();
        let others = others.range(range).filter(|((_, port), _)| *port != own);
        others.map(|((_, port), inbox)| (*port, inbox.clone())).collect()
    }
}

impl Edge for SharedEdge {
    fn service(&mut self, _now: Time, _index: u32, inbound: Inbound<'_>) {
        self.receive(inbound);
    }

    fn service_again(&mut self, _now: Time, inbound: Inbound<'_>) -> bool {
        if self.has_more {
            self.receive(inbound);
        }
        self.has_more
    }

    fn send(&mut self, _now: Time, transmit: Transmit) {
        self.outbox.push(transmit);
    }

    fn flush(&mut self, now: Time, _inbound: Inbound<'_>) {
        for transmit in std::mem::take(&mut self.outbox) {
            let bytes = transmit.whole();
            match transmit.dest {
                TransmitDest::One(peer) => {
                    if let Some(inbox) = self.find(peer) {
                        self.deliver(now, peer.port, &inbox, bytes);
                    }
                }
                TransmitDest::Many(peers) => {
                    for &peer in peers.iter() {
                        if let Some(inbox) = self.find(peer) {
                            self.deliver(now, peer.port, &inbox, bytes.clone());
                        }
                    }
                }
                TransmitDest::Multicast => {
                    for (port, inbox) in self.others() {
                        self.deliver(now, port, &inbox, bytes.clone());
                    }
                }
            }
        }
        let waker = &self.waker;
        self.half_full.retain(|(_, inbox)| inbox.is_half_full(waker));
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _now: Time, _inbound: Inbound<'_>) {}

    fn retain_peers(&mut self, _now: Time, peers: &[PhysAddr]) {
        // A member that has left may never take its queued packets.
        self.half_full.retain(|&(port, _)| peers.contains(&own(port)));
    }

    fn begin_close(&mut self, now: Time) {
        self.flush(now, &mut |_, _| {});
        self.bound.inbox.set_waker(None);
    }

    fn is_closed(&mut self) -> bool {
        true
    }

    fn stats(&self) -> EdgeStats {
        self.stats
    }

    fn warnings(&self) -> Vec<(&'static str, u64)> {
        self.warnings.iter().collect()
    }

    fn peers(&self) -> Vec<PhysAddr> {
        self.others().into_iter().map(|(port, _)| own(port)).collect()
    }

    fn is_half_full(&self, peer: PhysAddr) -> bool {
        self.half_full.iter().any(|(port, _)| *port == peer.port)
    }

    fn queue_bytes(&self) -> usize {
        BYTES_MAX
    }
}
