//! The edge between a stack and the network: which sockets carry its packets.
//!
//! An edge is bound first ([`BoundEdge::bind`]), because the stack needs to know where it is reached; the driver then
//! puts it to work.

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

/// Takes a packet and where it came from.
pub(crate) type Inbound<'a> = &'a mut dyn FnMut(PhysAddr, Bytes);

/// The edge could not be opened. No socket is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The host's interfaces cannot be listed.
    #[error("the interfaces of this host cannot be listed: {0}")]
    Interfaces(io::Error),
    /// No selector of `bind_addr` found an address.
    #[error("bind_addr {bind_addr:?} finds none of this host's addresses ({found})")]
    NoAddress {
        /// The selectors.
        bind_addr: String,
        /// The addresses there are.
        found: String,
    },
    /// The system refused a socket.
    #[error("{ip} port {port}: {error}")]
    Socket {
        /// The address to bind.
        ip: IpAddr,
        /// The first port that was tried.
        port: u16,
        /// What the system said.
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

/// An edge at work. Nothing in it waits: sockets are polled when their wakers have named them.
pub(crate) trait Edge: Send {
    /// Polls one source that its waker named.
    fn service(&mut self, now: Time, index: u32, inbound: Inbound<'_>);
    /// Polls the sources that want it although no waker named them. Returns whether there are more.
    fn service_again(&mut self, now: Time, inbound: Inbound<'_>) -> bool;
    /// Queues a packet.
    fn send(&mut self, now: Time, transmit: Transmit);
    /// Writes what is queued, as far as the sockets take it.
    fn flush(&mut self, now: Time, inbound: Inbound<'_>);
    /// When `handle_timeout` wants to be called.
    fn poll_timeout(&self) -> Option<Time>;
    /// Ends what has taken too long.
    fn handle_timeout(&mut self, now: Time, inbound: Inbound<'_>);
    /// A view has taken effect, and these are the physical addresses of its members; nothing while some are not known.
    fn set_members(&mut self, _members: Option<&[PhysAddr]>) {}
    /// A view has taken effect, these are the physical addresses of its members.
    fn retain_peers(&mut self, now: Time, peers: &[PhysAddr]);
    /// Sends what is queued and ends everything.
    fn begin_close(&mut self, now: Time);
    /// Everything has ended.
    fn is_closed(&mut self) -> bool;
    /// What it has done so far.
    fn stats(&self) -> EdgeStats;
    /// What went wrong so far, by cause.
    fn complaints(&self) -> Vec<(&'static str, u64)>;
    /// Peers with a connection that stands.
    fn peers(&self) -> Vec<PhysAddr>;
    /// Whether more than half of the data that may wait for a peer waits: whoever makes more should wait now, because
    /// soon it would be dropped. When that is over, a source names itself.
    fn is_crowded(&self, peer: PhysAddr) -> bool;
    /// How many bytes of data may wait before more is dropped: for each peer, or for all where they share a queue.
    fn queue_bytes(&self) -> usize;
}

/// Sockets that are bound and wait for a driver.
pub struct BoundEdge {
    bound: Bound,
    side: LinkSettings,
}

enum Bound {
    Tcp(Box<BoundTcp>),
    Udp(Box<BoundUdp>),
    Shared(BoundShared),
}

impl BoundEdge {
    /// Binds the sockets of a transport that speaks this version.
    ///
    /// # Errors
    ///
    /// If no address fits or the system refuses. Nothing is left open then.
    pub fn bind(config: &TransportConfig, version: Version) -> Result<Self, BindError> {
        // Layers ask for each attempt by name and count them, so nothing is held back; FD_SOCK2's sockets speak no TLS
        // and are never idle for long enough to be reaped wrongly, because they are never reaped.
        let side = LinkSettings {
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
        Ok(Self { bound, side })
    }

    /// Where peers reach us; what is advertised in its stead, if something is.
    pub fn phys_addr(&self) -> PhysAddr {
        match &self.bound {
            Bound::Tcp(bound) => bound.own(),
            Bound::Udp(bound) => bound.own(),
            Bound::Shared(bound) => bound.own(),
        }
    }

    /// Whether the edge reaches everybody with one packet.
    pub fn has_multicast(&self) -> bool {
        match &self.bound {
            Bound::Tcp(_) => false,
            Bound::Udp(bound) => bound.has_multicast(),
            Bound::Shared(_) => true,
        }
    }

    /// What connections of layers with sockets of their own are to be like.
    pub(crate) fn side_settings(&self) -> LinkSettings {
        self.side.clone()
    }

    /// Puts the sockets to work on the current runtime.
    pub(crate) fn open(self, signals: &Arc<Signals>) -> io::Result<Box<dyn Edge>> {
        Ok(match self.bound {
            Bound::Tcp(bound) => Box::new(bound.open(signals)?),
            Bound::Udp(bound) => Box::new(bound.open(signals)?),
            Bound::Shared(bound) => Box::new(bound.open(signals)),
        })
    }
}

/// The address that peers are told: the external one if configured; for a wildcard socket, one of the host's.
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
