//! UDP: one socket for unicasts and for sending, one for the group (facts 5).

mod socket;

pub(crate) use socket::{MulticastOptions, group_socket, interface_index, unicast_socket};

use std::sync::Arc;

use consort_group::PhysAddr;

use crate::bind_addr::Interface;
use crate::config::TransportConfig;
use crate::edge::BindError;
use crate::signals::Signals;

pub(crate) enum BoundUdp {}

impl BoundUdp {
    pub(crate) fn bind(_config: &TransportConfig, chosen: &Interface) -> Result<Self, BindError> {
        Err(BindError::socket(chosen.ip, 0, std::io::ErrorKind::Unsupported.into()))
    }
    pub(crate) fn own(&self) -> PhysAddr {
        match *self {}
    }
    pub(crate) fn has_multicast(&self) -> bool {
        match *self {}
    }
    pub(crate) fn open(self, _signals: &Arc<Signals>) -> std::io::Result<crate::shared_loopback::SharedEdge> {
        match self {}
    }
}
