//! As a member's stack would get them.

use std::net::{IpAddr, SocketAddr};

#[derive(Default)]
pub(super) struct Discovered {
    pub(super) hosts: Vec<IpAddr>,
    pub(super) asked: Vec<SocketAddr>,
    pub(super) has_responses: bool,
}
