//! The edge of TUNNEL, whose layer sends through its own connections to routers: the member's address, and no packets.

use std::net::UdpSocket;

use consort_group::{PhysAddr, Time, Transmit};

use crate::bind_addr::Interface;
use crate::bind_error::BindError;
use crate::config::TransportConfig;
use crate::edge::{Edge, Inbound};
use crate::stats::EdgeStats;

/// As JGroups, it reserves a port, which makes the address unique on this host. Nothing is sent to it.
pub(crate) struct BoundTunnel {
    own: PhysAddr,
    _reserved: UdpSocket,
}

impl BoundTunnel {
    pub(crate) fn bind(config: &TransportConfig, chosen: &Interface) -> Result<Self, BindError> {
        let failed = |error| BindError::socket(chosen.ip, 0, error);
        let address = PhysAddr { scope_id: chosen.index, ..PhysAddr::new(chosen.ip, 0) };
        let socket = UdpSocket::bind(address.socket_addr()).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        Ok(Self { own: crate::edge::advertised(config, local)?, _reserved: socket })
    }

    pub(crate) fn own(&self) -> PhysAddr {
        self.own
    }
}

impl Edge for BoundTunnel {
    fn service(&mut self, _now: Time, _index: u32, _inbound: Inbound<'_>) {}

    fn service_again(&mut self, _now: Time, _inbound: Inbound<'_>) -> bool {
        false
    }

    fn send(&mut self, _now: Time, _transmit: Transmit) {}

    fn flush(&mut self, _now: Time, _inbound: Inbound<'_>) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_timeout(&mut self, _now: Time, _inbound: Inbound<'_>) {}

    fn retain_peers(&mut self, _now: Time, _peers: &[PhysAddr]) {}

    fn begin_close(&mut self, _now: Time) {}

    fn is_closed(&mut self) -> bool {
        true
    }

    fn stats(&self) -> EdgeStats {
        EdgeStats::default()
    }

    fn warnings(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn peers(&self) -> Vec<PhysAddr> {
        Vec::new()
    }

    fn is_half_full(&self, _peer: PhysAddr) -> bool {
        false
    }

    fn queue_bytes(&self) -> usize {
        0
    }
}
