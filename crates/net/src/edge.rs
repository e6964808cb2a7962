//! The edge between a stack and the network: the sockets that carry its packets.
//!
//! [`crate::BoundEdge::bind`] comes first, because the stack needs the bound address. The driver then opens the edge.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use consort_group::{ExternalAddress, PhysAddr, Time, Transmit};

use crate::bind_addr::{BindAddr, Interface, IpVersion, SystemNames};
use crate::bind_error::BindError;
use crate::config::TransportConfig;
use crate::stats::EdgeStats;

/// Takes a packet and the address of its sender.
pub(crate) type Inbound<'a> = &'a mut dyn FnMut(PhysAddr, Bytes);

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
    /// Takes a peer whose connection has ended although neither side closed it in order.
    fn poll_lost_peer(&mut self) -> Option<PhysAddr> {
        None
    }
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
