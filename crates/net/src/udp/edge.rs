//! The UDP edge.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use consort_group::{PacketPriority, PhysAddr, Time, Transmit, TransmitDest};
use socket2::{SockAddr, Socket};
use tokio::net::UdpSocket;

use super::batch::{BATCH_MAX, Receiver, poll_send};
use super::buffers;
use super::own_filter::drop_own;
use super::receivers::Receivers;
use super::socket::{MulticastOptions, group_socket, interface_index, unicast_socket};
use crate::bind_addr::Interface;
use crate::bind_error::BindError;
use crate::config::TransportConfig;
use crate::edge::{Edge, Inbound, advertised};
use crate::groups::DefaultGroups;
use crate::inbox::Inbox;
use crate::signals::{Key, Owner, Signals, SourceWaker};
use crate::stats::EdgeStats;
use crate::tcp::listen::port_range;
use crate::warnings::RateLimitedWarnings;

/// A flood must delay neither the other socket nor timers.
const DATAGRAMS_PER_CYCLE: usize = 256;

/// The bound keeps datagrams in the CPU's cache until the stack reads them.
const BYTES_PER_CYCLE: usize = 256 * 1024;

/// A datagram counts these bytes beside its own.
const DATAGRAM_OVERHEAD: usize = 64;

const UNICAST: u32 = 0;
const GROUP: u32 = 1;
const INBOX: u32 = 2;
const TASKS: u32 = 3;

/// It does not receive yet.
pub(crate) struct BoundUdp {
    unicast: Socket,
    group: Option<(Socket, SocketAddr)>,
    /// The source of this member's datagrams.
    local: PhysAddr,
    own: PhysAddr,
    config: TransportConfig,
}

impl BoundUdp {
    pub(crate) fn bind(config: &TransportConfig, chosen: &Interface) -> Result<Self, BindError> {
        let failed = |error| BindError::socket(chosen.ip, config.bind_port, error);
        let options = MulticastOptions { ttl: config.ip_ttl, is_looped: true };
        let unicast = first_free(config, chosen, options).map_err(failed)?;
        buffers::ask(
            &unicast,
            config.ucast_recv_buf_size,
            config.ucast_send_buf_size.max(config.mcast_send_buf_size),
        );
        if config.tos != 0 && chosen.ip.is_ipv4() {
            unicast.set_tos_v4(config.tos).map_err(failed)?;
        }
        let group = config.ip_mcast.then(|| join(config, chosen)).transpose().map_err(failed)?;
        let local = unicast.local_addr().map_err(failed)?.as_socket().ok_or_else(|| {
            failed(io::Error::new(io::ErrorKind::InvalidData, "a datagram socket without address"))
        })?;
        if let Some((group, _)) = group.as_ref().filter(|(_, group)| group.is_ipv4() == local.is_ipv4()) {
            drop_own(group, local);
        }
        let own = advertised(config, local)?;
        Ok(Self {
            unicast,
            group,
            local: PhysAddr {
                ip: own.ip.filter(|_| local.ip().is_unspecified()).or(Some(local.ip())),
                ..local.into()
            },
            own,
            config: config.clone(),
        })
    }

    pub(crate) fn own(&self) -> PhysAddr {
        self.own
    }

    pub(crate) fn has_multicast(&self) -> bool {
        self.group.is_some()
    }

    pub(crate) fn open(self, signals: &Arc<Signals>) -> io::Result<UdpEdge> {
        let waker = |index| SourceWaker::waker(signals, Key { owner: Owner::Edge, index });
        let inbox = Arc::new(Inbox::default());
        inbox.set_waker(Some(waker(INBOX)));
        let source = |socket: Socket, index, receivers: usize| -> io::Result<Source> {
            let socket = Arc::new(UdpSocket::from_std(socket.into())?);
            let receivers = (receivers > 1).then(|| Receivers::start(receivers, &socket, &inbox));
            Ok(Source { socket, waker: waker(index), receivers })
        };
        let unicast = source(self.unicast, UNICAST, self.config.ucast_receiver_threads)?;
        let (group, group_addr) = match self.group {
            Some((socket, addr)) => {
                (Some(source(socket, GROUP, self.config.mcast_receiver_threads)?), Some(addr))
            }
            None => (None, None),
        };
        Ok(UdpEdge {
            is_v6: self.local.ip.is_some_and(|ip| ip.is_ipv6()),
            unicast,
            group,
            group_addr,
            inbox,
            tasks_waker: waker(TASKS),
            receiver: Receiver::new(),
            taken: Vec::new(),
            again: vec![UNICAST, GROUP],
            outbox: Outbox::default(),
            is_blocked: false,
            own: [self.local, self.own],
            limits: (self.config.control_queue_bytes, self.config.send_queue_bytes),
            is_closing: false,
            warnings: RateLimitedWarnings::default(),
            stats: EdgeStats::default(),
        })
    }
}

fn first_free(config: &TransportConfig, chosen: &Interface, options: MulticastOptions) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no port to bind");
    for port in port_range(config.bind_port, config.port_range) {
        match unicast_socket(chosen.ip, chosen.index, port, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            result => return result,
        }
    }
    Err(last)
}

fn join(config: &TransportConfig, chosen: &Interface) -> io::Result<(Socket, SocketAddr)> {
    let ip = DefaultGroups::TRANSPORT.choose(config.mcast_addr, Some(chosen.ip));
    let index = if chosen.index == 0 { interface_index(chosen.ip) } else { chosen.index };
    let socket = group_socket(PhysAddr::new(ip, config.mcast_port), chosen.ip, index)?;
    buffers::ask(&socket, config.mcast_recv_buf_size, 0);
    Ok((socket, SocketAddr::new(ip, config.mcast_port)))
}

/// The driver or tasks read it.
struct Source {
    socket: Arc<UdpSocket>,
    waker: Waker,
    receivers: Option<Receivers>,
}

/// Control packets come first.
#[derive(Default)]
struct Outbox {
    control: VecDeque<(SockAddr, Bytes)>,
    data: VecDeque<(SockAddr, Bytes)>,
    control_len: usize,
    data_len: usize,
}

impl Outbox {
    fn has_room(&self, priority: PacketPriority, bytes: &Bytes, (control, data): (usize, usize)) -> bool {
        let (queue, length, limit) = match priority {
            PacketPriority::Control => (&self.control, self.control_len, control),
            PacketPriority::Data => (&self.data, self.data_len, data),
        };
        // An empty queue takes any datagram: a limit below its size must not block the peer.
        length + bytes.len() + DATAGRAM_OVERHEAD <= limit || queue.is_empty()
    }

    fn push(&mut self, priority: PacketPriority, to: SockAddr, bytes: Bytes) {
        let (queue, length) = match priority {
            PacketPriority::Control => (&mut self.control, &mut self.control_len),
            PacketPriority::Data => (&mut self.data, &mut self.data_len),
        };
        *length += bytes.len() + DATAGRAM_OVERHEAD;
        queue.push_back((to, bytes));
    }

    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    fn first(&self, count: usize) -> Vec<(SockAddr, &[u8])> {
        let all = self.control.iter().chain(&self.data);
        all.take(count).map(|(to, bytes)| (to.clone(), &bytes[..])).collect()
    }

    fn drop_first(&mut self, count: usize) -> usize {
        let mut length = 0;
        for _ in 0..count {
            if let Some((_, bytes)) = self.control.pop_front() {
                self.control_len -= bytes.len() + DATAGRAM_OVERHEAD;
                length += bytes.len();
            } else if let Some((_, bytes)) = self.data.pop_front() {
                self.data_len -= bytes.len() + DATAGRAM_OVERHEAD;
                length += bytes.len();
            }
        }
        length
    }
}

pub(crate) struct UdpEdge {
    unicast: Source,
    group: Option<Source>,
    group_addr: Option<SocketAddr>,
    is_v6: bool,
    inbox: Arc<Inbox>,
    tasks_waker: Waker,
    receiver: Receiver,
    taken: Vec<(PhysAddr, Bytes)>,
    /// The sources to poll without their wakers.
    again: Vec<u32>,
    outbox: Outbox,
    /// The socket is full until its waker is woken.
    is_blocked: bool,
    own: [PhysAddr; 2],
    limits: (usize, usize),
    is_closing: bool,
    warnings: RateLimitedWarnings,
    stats: EdgeStats,
}

impl UdpEdge {
    fn receive(&mut self, now: Time, index: u32, inbound: Inbound<'_>) {
        let Self { unicast, group, receiver, taken, stats, .. } = self;
        let source = if index == GROUP { group.as_ref() } else { Some(&*unicast) };
        let Some(source) = source.filter(|source| source.receivers.is_none()) else { return };
        let mut bytes = 0;
        loop {
            if bytes >= BYTES_PER_CYCLE || taken.len() >= DATAGRAMS_PER_CYCLE {
                self.again.push(index);
                break;
            }
            let take = |from, packet: Bytes| {
                bytes += packet.len();
                taken.push((PhysAddr::from(from), packet));
            };
            match receiver.poll_receive(&source.socket, &source.waker, take) {
                Poll::Ready(Ok(0)) => {
                    self.again.push(index);
                    break;
                }
                Poll::Ready(Ok(_)) => stats.reads += 1,
                Poll::Ready(Err(error)) => {
                    // For example the ICMP error of a closed port: it concerns one datagram.
                    self.warnings.count(now, "receive_failed", || error.to_string());
                    self.again.push(index);
                    break;
                }
                Poll::Pending => break,
            }
        }
        self.pass(inbound);
    }

    fn pass(&mut self, inbound: Inbound<'_>) {
        for (mut from, packet) in self.taken.drain(..) {
            from.ip = from.ip.map(|ip| ip.to_canonical());
            if self.own.contains(&from) {
                self.stats.own += 1;
                continue;
            }
            self.stats.packets_in += 1;
            self.stats.bytes_in += packet.len() as u64;
            inbound(from, packet);
        }
    }

    fn take_inbox(&mut self, inbound: Inbound<'_>) {
        if self.inbox.take(DATAGRAMS_PER_CYCLE, &mut self.taken) {
            self.again.push(INBOX);
        }
        self.pass(inbound);
    }

    fn queue(&mut self, now: Time, to: SocketAddr, priority: PacketPriority, bytes: Bytes) {
        self.stats.packets_out += 1;
        let to = match (to, self.is_v6) {
            (SocketAddr::V4(to), true) => SocketAddr::new(IpAddr::V6(to.ip().to_ipv6_mapped()), to.port()),
            _ => to,
        };
        if !self.is_blocked && !self.outbox.has_room(priority, &bytes, self.limits) {
            // A single cycle may bring more than the queue holds, such as copies for many members: only what the
            // socket does not take is dropped.
            self.write(now);
        }
        if self.outbox.has_room(priority, &bytes, self.limits) {
            self.outbox.push(priority, SockAddr::from(to), bytes);
        } else {
            self.stats.dropped += 1;
            self.warnings.count(now, "send_queue_full", || format!("{priority:?} for {to}"));
        }
    }

    fn queue_to(&mut self, now: Time, peer: PhysAddr, priority: PacketPriority, bytes: Bytes) {
        if peer.ip.is_some() && !self.own.contains(&peer) {
            self.queue(now, peer.socket_addr(), priority, bytes);
        }
    }

    fn write(&mut self, now: Time) {
        self.is_blocked = false;
        while !self.outbox.is_empty() {
            let batch = self.outbox.first(BATCH_MAX);
            match poll_send(&self.unicast.socket, &self.unicast.waker, &batch) {
                Poll::Ready(Ok(count)) => {
                    self.stats.writes += 1;
                    self.stats.bytes_out += self.outbox.drop_first(count.max(1)) as u64;
                }
                Poll::Ready(Err(error)) => {
                    self.warnings.count(now, "send_failed", || format!("a datagram is dropped: {error}"));
                    self.stats.dropped += 1;
                    self.outbox.drop_first(1);
                }
                Poll::Pending => {
                    self.is_blocked = true;
                    return;
                }
            }
        }
    }
}

impl Edge for UdpEdge {
    fn service(&mut self, now: Time, index: u32, inbound: Inbound<'_>) {
        match index {
            UNICAST => {
                self.receive(now, UNICAST, inbound);
                self.write(now);
            }
            GROUP => self.receive(now, GROUP, inbound),
            INBOX => self.take_inbox(inbound),
            _ => {}
        }
    }

    fn service_again(&mut self, now: Time, inbound: Inbound<'_>) -> bool {
        for index in std::mem::take(&mut self.again) {
            self.service(now, index, inbound);
        }
        !self.again.is_empty()
    }

    fn send(&mut self, now: Time, transmit: Transmit) {
        let bytes = transmit.whole();
        let Transmit { dest, priority, .. } = transmit;
        match dest {
            TransmitDest::One(peer) => self.queue_to(now, peer, priority, bytes),
            TransmitDest::Many(peers) => {
                for &peer in peers.iter() {
                    self.queue_to(now, peer, priority, bytes.clone());
                }
            }
            TransmitDest::Multicast => match self.group_addr {
                Some(group) => self.queue(now, group, priority, bytes),
                None => {
                    self.warnings.count(now, "no_multicast", || "ip_mcast is off".into());
                }
            },
        }
    }

    fn flush(&mut self, now: Time, _inbound: Inbound<'_>) {
        self.write(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _now: Time, _inbound: Inbound<'_>) {}

    fn retain_peers(&mut self, _now: Time, _peers: &[PhysAddr]) {}

    fn begin_close(&mut self, now: Time) {
        self.write(now);
        self.is_closing = true;
        self.inbox.set_waker(None);
        for source in [Some(&mut self.unicast), self.group.as_mut()].into_iter().flatten() {
            if let Some(receivers) = &mut source.receivers {
                receivers.stop();
                // Polled once to register the waker for the tasks' end.
                receivers.is_over(&self.tasks_waker);
            }
        }
    }

    fn is_closed(&mut self) -> bool {
        let waker = &self.tasks_waker;
        let sources = [Some(&mut self.unicast), self.group.as_mut()].into_iter().flatten();
        let mut receivers = sources.filter_map(|source| source.receivers.as_mut());
        self.is_closing && receivers.all(|receivers| receivers.is_over(waker)) && self.outbox.is_empty()
    }

    fn stats(&self) -> EdgeStats {
        self.stats
    }

    fn warnings(&self) -> Vec<(&'static str, u64)> {
        self.warnings.iter().collect()
    }

    fn peers(&self) -> Vec<PhysAddr> {
        Vec::new()
    }

    /// All peers share the queue; own datagrams do not use it.
    fn is_half_full(&self, peer: PhysAddr) -> bool {
        self.outbox.data_len > self.queue_bytes() / 2 && !self.own.contains(&peer)
    }

    fn queue_bytes(&self) -> usize {
        self.limits.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(dest: TransmitDest, bytes: usize) -> Transmit {
        Transmit { dest, bytes: vec![0; bytes].into(), tail: Bytes::new(), priority: PacketPriority::Data }
    }

    /// With a queue of 100,000 bytes and a writable socket.
    async fn peer_and_edge() -> (std::net::UdpSocket, PhysAddr, UdpEdge) {
        let (socket, peer, edge) = peer_and_new_edge();
        edge.unicast.socket.writable().await.unwrap();
        (socket, peer, edge)
    }

    /// The runtime does not know that the socket is writable.
    fn peer_and_new_edge() -> (std::net::UdpSocket, PhysAddr, UdpEdge) {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let config = TransportConfig { ip_mcast: false, send_queue_bytes: 100_000, ..TransportConfig::udp() };
        let chosen = Interface { name: "lo".into(), ip, index: 0 };
        let edge = BoundUdp::bind(&config, &chosen).unwrap().open(&Arc::new(Signals::default())).unwrap();
        let socket = std::net::UdpSocket::bind((ip, 0)).unwrap();
        let peer = socket.local_addr().unwrap().into();
        (socket, peer, edge)
    }

    #[tokio::test]
    async fn over_half_a_queue_crowds_every_peer_but_ourselves() {
        let (_socket, peer, mut edge) = peer_and_edge().await;
        let other = PhysAddr { port: peer.port ^ 1, ..peer };
        edge.send(Time::ZERO, data(TransmitDest::One(peer), 40_000));
        assert!(!edge.is_half_full(peer));
        edge.send(Time::ZERO, data(TransmitDest::One(peer), 40_000));
        let own = edge.own[1];
        assert_eq!([peer, other, own].map(|peer| edge.is_half_full(peer)), [true, true, false]);
        edge.flush(Time::ZERO, &mut |_, _| ());
        assert!(!edge.is_half_full(peer), "the socket has taken it");
    }

    #[tokio::test]
    async fn a_full_queue_is_written_before_anything_is_dropped() {
        let (_socket, peer, mut edge) = peer_and_edge().await;
        edge.send(Time::ZERO, data(TransmitDest::Many([peer; 10].into()), 40_000));
        assert_eq!((edge.stats().packets_out, edge.stats().dropped), (10, 0));
        assert!(edge.stats().writes > 0 && !edge.outbox.is_empty());
    }

    #[tokio::test]
    async fn a_blocked_socket_is_written_again_when_its_waker_is_woken() {
        let (_socket, peer, mut edge) = peer_and_new_edge();
        edge.send(Time::ZERO, data(TransmitDest::Many([peer; 10].into()), 40_000));
        assert_eq!((edge.stats().writes, edge.stats().dropped), (0, 8));
        edge.unicast.socket.writable().await.unwrap();
        edge.send(Time::ZERO, data(TransmitDest::One(peer), 40_000));
        assert_eq!((edge.stats().writes, edge.stats().dropped), (0, 9), "the waker has not been woken yet");
        edge.service(Time::ZERO, UNICAST, &mut |_, _| ());
        assert!(edge.outbox.is_empty());
        edge.send(Time::ZERO, data(TransmitDest::Many([peer; 10].into()), 40_000));
        assert_eq!(edge.stats().dropped, 9);
    }
}
