//! The TCP edge: a connection per peer, opened by the first packet.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{PacketPriority, PhysAddr, Time, Transmit, TransmitDest, Version};

use super::links::{LinkEvent, LinkSettings, Links, Loss};
use super::listen::{listen, port_range};
use super::queue::{OutFrame, QueueLimits};
use super::stream::SocketOptions;
use crate::bind_addr::Interface;
use crate::bind_error::BindError;
use crate::config::TransportConfig;
use crate::edge::{Edge, Inbound, LostPeer};
use crate::signals::{Owner, Signals};
use crate::stats::EdgeStats;
use crate::tcp::tls::Tls;

/// Packets are queued meanwhile: retransmissions to a dead member must not cause a stream of attempts, and a
/// restarted member must not miss packets.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// It does not accept yet.
pub(crate) struct BoundTcp {
    listener: TcpListener,
    own: PhysAddr,
    settings: LinkSettings,
    connect_timeout: Duration,
}

impl BoundTcp {
    pub(crate) fn bind(
        config: &TransportConfig,
        version: Version,
        chosen: &Interface,
    ) -> Result<Self, BindError> {
        let tls = Tls::new(&config.tls)?;
        let ports = port_range(config.bind_port, config.port_range);
        let listener = listen(chosen.ip, chosen.index, ports, config.recv_buf_size)
            .map_err(|error| BindError::socket(chosen.ip, config.bind_port, error))?;
        let local =
            listener.local_addr().map_err(|error| BindError::socket(chosen.ip, config.bind_port, error))?;
        Ok(Self {
            own: crate::edge::advertised(config, local)?,
            listener,
            settings: link_settings(config, version, tls),
            connect_timeout: config.sock_conn_timeout,
        })
    }

    pub(crate) fn own(&self) -> PhysAddr {
        self.own
    }

    pub(crate) fn tls(&self) -> Option<Tls> {
        self.settings.tls.clone()
    }

    pub(crate) fn open(self, signals: &Arc<Signals>) -> std::io::Result<TcpEdge> {
        let mut links = Links::new(Owner::Edge, signals.clone(), self.settings, self.own, 0);
        links.listen(tokio::net::TcpListener::from_std(self.listener)?);
        let lost_peers = Vec::new();
        Ok(TcpEdge { links, own: self.own, connect_timeout: self.connect_timeout, lost_peers })
    }
}

pub(crate) fn link_settings(config: &TransportConfig, version: Version, tls: Option<Tls>) -> LinkSettings {
    LinkSettings {
        version,
        accept_any_version: config.accept_any_version,
        options: SocketOptions {
            keep_alive: true,
            nodelay: config.tcp_nodelay,
            linger: config.linger,
            recv_buf: config.recv_buf_size,
            send_buf: config.send_buf_size,
        },
        setup_timeout: config.peer_addr_read_timeout,
        limits: QueueLimits { data: config.send_queue_bytes, control: config.control_queue_bytes },
        frame_len_max: config.frame_len_max(),
        expire_time: config.conn_expire_time,
        reaper_interval: config.reaper_interval,
        reconnect_pause: RECONNECT_PAUSE,
        tls,
    }
}

pub(crate) struct TcpEdge {
    links: Links,
    own: PhysAddr,
    connect_timeout: Duration,
    /// Peers whose connections ended without the graceful-close word, taken in each cycle.
    lost_peers: Vec<LostPeer>,
}

impl TcpEdge {
    fn send_to(&mut self, now: Time, peer: PhysAddr, priority: PacketPriority, frame: OutFrame) {
        // Sends to this member use no socket; the transport has looped them back.
        if peer == self.own || peer.ip.is_none() {
            return;
        }
        self.links.stats.packets_out += 1;
        let found = self
            .links
            .find(peer)
            .or_else(|| self.links.connect(now, peer, Some(self.own), self.connect_timeout));
        match found {
            Some(index) => {
                self.links.push(now, index, priority, frame);
            }
            None => self.links.stats.dropped += 1,
        }
    }
}

impl Edge for TcpEdge {
    fn service(&mut self, now: Time, index: u32, inbound: Inbound<'_>) {
        let Self { links, lost_peers, .. } = self;
        links.service(now, index, &mut |event| pass(event, inbound, lost_peers));
    }

    fn service_again(&mut self, now: Time, inbound: Inbound<'_>) -> bool {
        let Self { links, lost_peers, .. } = self;
        links.service_again(now, &mut |event| pass(event, inbound, lost_peers))
    }

    fn send(&mut self, now: Time, transmit: Transmit) {
        let frame = OutFrame { bytes: transmit.bytes, tail: transmit.tail };
        match transmit.dest {
            TransmitDest::One(peer) => self.send_to(now, peer, transmit.priority, frame),
            TransmitDest::Many(peers) => {
                for &peer in peers.iter() {
                    self.send_to(now, peer, transmit.priority, frame.clone());
                }
            }
            TransmitDest::Multicast => {
                self.links.warnings.count(now, "no_multicast", || "TCP has no group to send to".into());
            }
        }
    }

    fn flush(&mut self, now: Time, inbound: Inbound<'_>) {
        let Self { links, lost_peers, .. } = self;
        links.flush(now, &mut |event| pass(event, inbound, lost_peers));
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.links.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time, inbound: Inbound<'_>) {
        let Self { links, lost_peers, .. } = self;
        links.handle_timeout(now, &mut |event| pass(event, inbound, lost_peers));
    }

    fn poll_lost_peer(&mut self) -> Option<LostPeer> {
        self.lost_peers.pop()
    }

    fn set_members(&mut self, members: Option<&[PhysAddr]>) {
        self.links.set_members(members);
    }

    fn retain_peers(&mut self, now: Time, peers: &[PhysAddr]) {
        self.links.retain(now, |peer| peers.contains(&peer));
    }

    fn begin_close(&mut self, now: Time) {
        self.links.begin_close(now);
    }

    fn is_closed(&mut self) -> bool {
        self.links.is_empty()
    }

    fn stats(&self) -> EdgeStats {
        self.links.stats
    }

    fn warnings(&self) -> Vec<(&'static str, u64)> {
        self.links.warnings.iter().collect()
    }

    fn peers(&self) -> Vec<PhysAddr> {
        self.links.peers().collect()
    }

    fn is_half_full(&self, peer: PhysAddr) -> bool {
        self.links.is_half_full(peer)
    }

    fn queue_bytes(&self) -> usize {
        self.links.queue_bytes()
    }
}

/// Passes frames on as packets, also those of a connection that gives way to another one, and notes lost peers.
fn pass(event: LinkEvent, inbound: Inbound<'_>, lost_peers: &mut Vec<LostPeer>) {
    match event {
        LinkEvent::Frame { peer, frame, .. } => inbound(peer, frame),
        LinkEvent::Closed {
            peer,
            is_graceful: false,
            loss: loss @ (Loss::EndOfStream | Loss::Reset),
            ..
        } => {
            lost_peers.push(LostPeer { peer, is_end_of_stream: loss == Loss::EndOfStream });
        }
        _ => {}
    }
}
