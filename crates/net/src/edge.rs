//! The edge between a stack and the network: the sockets that carry its packets.
//!
//! [`BoundEdge::bind`] comes first, because the stack needs the bound address. The driver then opens the edge.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{ExternalAddress, PhysAddr, Time, Transmit, Version};

use crate::bind_addr::{BindAddr, Interface, IpVersion, SystemNames};
use crate::config::{EdgeKind, TransportConfig};
use crate::shared_loopback::BoundShared;
use crate::signals::Signals;
use crate::stats::EdgeStats;
use crate::tcp::links::LinkSettings;
use crate::tcp::{BoundTcp, link_settings};
use crate::tls::TlsError;
use crate::udp::BoundUdp;

/// Takes a packet and the address of its sender.
pub(crate) type Inbound<'a> = &'a mut dyn FnMut(PhysAddr, Bytes);

/// An edge could not be opened. No socket is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The host's interfaces cannot be listed.
    #[error("the interfaces of this host cannot be listed: {0}")]
    Interfaces(io::Error),
    /// No selector of `bind_addr` matched an address.
    #[error("bind_addr {bind_addr:?} finds none of this host's addresses ({found})")]
    NoAddress {
        /// The selectors.
        bind_addr: String,
        /// The host's addresses.
        found: String,
    },
    /// The system refused a socket.
    #[error("{ip} port {port}: {error}")]
    Socket {
        /// The address to bind.
        ip: IpAddr,
        /// The first port that was tried.
        port: u16,
        /// The system's error.
        error: io::Error,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl BindError {
    pub(crate) fn socket(ip: IpAddr, port: u16, error: io::Error) -> Self {
        Self::Socket { ip, port, error }
    }
}

/// An open edge. Nothing in it blocks: a socket is polled when its waker has named it.
pub(crate) trait Edge: Send {
    /// Polls one source that its waker named.
    fn service(&mut self, now: Time, index: u32, inbound: Inbound<'_>);
    /// Polls the sources that stopped with input left. Returns whether there are more.
    fn service_again(&mut self, now: Time, inbound: Inbound<'_>) -> bool;
    /// Queues a packet.
    fn send(&mut self, now: Time, transmit: Transmit);
    /// Writes queued packets, as far as the sockets take them.
    fn flush(&mut self, now: Time, inbound: Inbound<'_>);
    /// Returns when to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<Time>;
    /// Ends connections and attempts whose deadline has passed.
    fn handle_timeout(&mut self, now: Time, inbound: Inbound<'_>);
    /// Sets the physical addresses of the members of a new view; `None` while some are unknown.
    fn set_members(&mut self, _members: Option<&[PhysAddr]>) {}
    /// Closes connections to peers other than these members of a new view.
    fn retain_peers(&mut self, now: Time, peers: &[PhysAddr]);
    /// Sends queued packets and closes all sockets.
    fn begin_close(&mut self, now: Time);
    /// Returns whether all sockets are closed.
    fn is_closed(&mut self) -> bool;
    /// Returns the edge's counters.
    fn stats(&self) -> EdgeStats;
    /// Returns counts of faults, by cause.
    fn warnings(&self) -> Vec<(&'static str, u64)>;
    /// Returns the peers with an open connection.
    fn peers(&self) -> Vec<PhysAddr>;
    /// Returns whether more than half of the data queue of a peer is full. The caller should stop producing then,
    /// because more would soon be dropped. A source becomes ready when that ends.
    fn is_half_full(&self, peer: PhysAddr) -> bool;
    /// Returns how many bytes of data may be queued before more is dropped: per peer, or for all peers if they share
    /// a queue.
    fn queue_bytes(&self) -> usize;
}

/// Bound sockets that are not yet read.
pub struct BoundEdge {
    bound: Bound,
    effect_links: LinkSettings,
}

enum Bound {
    Tcp(Box<BoundTcp>),
    Udp(Box<BoundUdp>),
    Shared(BoundShared),
}

impl BoundEdge {
    /// Binds the sockets of a transport with this protocol version.
    ///
    /// # Errors
    ///
    /// If no address fits or the system refuses. No socket is left open then.
    pub fn bind(config: &TransportConfig, version: Version) -> Result<Self, BindError> {
        // No pause between attempts, because layers request each attempt and count them. FD_SOCK2's sockets have no
        // TLS. They are never reaped, because they are idle while all is well.
        let effect_links = LinkSettings {
            reconnect_pause: Duration::ZERO,
            reaper_interval: Duration::ZERO,
            ..link_settings(config, version, None)
        };
        let choose = || config.bind_addr.choose_of_host(config.ip_version);
        let bound = match config.kind {
            EdgeKind::SharedLoopback => Bound::Shared(BoundShared::bind(config)),
            EdgeKind::Tcp => Bound::Tcp(Box::new(BoundTcp::bind(config, version, &choose()?)?)),
            EdgeKind::Udp => Bound::Udp(Box::new(BoundUdp::bind(config, &choose()?)?)),
        };
        Ok(Self { bound, effect_links })
    }

    /// Returns the address to advertise: the external one if configured, else the bound one.
    pub fn phys_addr(&self) -> PhysAddr {
        match &self.bound {
            Bound::Tcp(bound) => bound.own(),
            Bound::Udp(bound) => bound.own(),
            Bound::Shared(bound) => bound.own(),
        }
    }

    /// Returns whether one packet reaches all members.
    pub fn has_multicast(&self) -> bool {
        match &self.bound {
            Bound::Tcp(_) => false,
            Bound::Udp(bound) => bound.has_multicast(),
            Bound::Shared(_) => true,
        }
    }

    /// Returns the settings of connections of layers with sockets of their own.
    pub(crate) fn effect_link_settings(&self) -> LinkSettings {
        self.effect_links.clone()
    }

    /// Registers the sockets with the current runtime.
    pub(crate) fn open(self, signals: &Arc<Signals>) -> io::Result<Box<dyn Edge>> {
        Ok(match self.bound {
            Bound::Tcp(bound) => Box::new(bound.open(signals)?),
            Bound::Udp(bound) => Box::new(bound.open(signals)?),
            Bound::Shared(bound) => Box::new(bound.open(signals)),
        })
    }
}

/// Returns the address to advertise: the external one if configured; for a wildcard socket, one of the host's.
pub(crate) fn advertised(config: &TransportConfig, local: SocketAddr) -> Result<PhysAddr, BindError> {
    let mut own = PhysAddr::from(local);
    if let Some(external) = ExternalAddress::configured(config.external_addr, config.external_port) {
        return Ok(external.apply(own));
    }
    if local.ip().is_unspecified() {
        let interfaces = Interface::of_host().map_err(BindError::Interfaces)?;
        let version = if local.is_ipv4() { IpVersion::V4 } else { config.ip_version };
        if let Some(found) = BindAddr::default().choose(&interfaces, version, &SystemNames) {
            own.ip = Some(found.ip);
            own.scope_id = found.index;
        }
    }
    if !matches!(own.ip, Some(IpAddr::V6(ip)) if ip.is_unicast_link_local()) {
        own.scope_id = 0;
    }
    Ok(own)
}
