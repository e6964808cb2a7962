//! The results of discovery, as a member's stack would get them.

use std::net::{IpAddr, SocketAddr};

/// The members that the discovery of a stack finds.
#[derive(Default)]
pub(super) struct Discovered {
    /// Hosts whose members can be queried.
    pub(super) hosts: Vec<IpAddr>,
    /// Addresses that a list of hosts names.
    pub(super) asked: Vec<SocketAddr>,
    /// Whether a member responds or is registered.
    pub(super) has_responses: bool,
}
