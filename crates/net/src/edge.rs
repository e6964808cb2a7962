//! The edge: the sockets of a stack's packets. [`crate::BoundEdge::bind`] comes before the stack, which needs the address.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use consort_group::{ExternalAddress, PhysAddr, Time, Transmit};

use crate::bind_addr::{BindAddr, Interface, IpVersion, SystemNames};
use crate::bind_error::BindError;
use crate::config::TransportConfig;
use crate::stats::EdgeStats;

/// A peer whose connection has ended although neither side closed it in order.
#[derive(Clone, Copy)]
pub(crate) struct LostPeer {
    pub(crate) peer: PhysAddr,
    /// Its host ended the stream; a reset did not.
    pub(crate) is_end_of_stream: bool,
}

pub(crate) type Inbound<'a> = &'a mut dyn FnMut(PhysAddr, Bytes);

/// Nothing blocks: a socket is polled when its waker has named it.
pub(crate) trait Edge: Send {
    fn service(&mut self, now: Time, index: u32, inbound: Inbound<'_>);
    /// Polls the sources that stopped with input left; returns whether there are more.
    fn service_again(&mut self, now: Time, inbound: Inbound<'_>) -> bool;
    fn send(&mut self, now: Time, transmit: Transmit);
    /// Writes as much as the sockets take.
    fn flush(&mut self, now: Time, inbound: Inbound<'_>);
    fn poll_timeout(&self) -> Option<Time>;
    fn handle_timeout(&mut self, now: Time, inbound: Inbound<'_>);
    /// Takes a lost peer.
    fn poll_lost_peer(&mut self) -> Option<LostPeer> {
        None
    }
    /// `None` while some members' addresses are unknown.
    fn set_members(&mut self, _members: Option<&[PhysAddr]>) {}
    /// Closes connections to other peers.
    fn retain_peers(&mut self, now: Time, peers: &[PhysAddr]);
    fn begin_close(&mut self, now: Time);
    fn is_closed(&mut self) -> bool;
    fn stats(&self) -> EdgeStats;
    fn warnings(&self) -> Vec<(&'static str, u64)>;
    fn peers(&self) -> Vec<PhysAddr>;
    /// The caller should stop: more would soon be dropped. A source becomes ready when that ends.
    fn is_half_full(&self, peer: PhysAddr) -> bool;
    /// The bound is per peer, or for all peers that share a queue.
    fn queue_bytes(&self) -> usize;
}

/// Returns the external address if configured; for a wildcard, one of the host's.
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
