//! As a member's stack would get them.

use std::net::{IpAddr, SocketAddr};

use consort_group::config::HostPort;

#[derive(Default)]
pub(super) struct Discovered {
    pub(super) hosts: Vec<IpAddr>,
    pub(super) asked: Vec<SocketAddr>,
    pub(super) has_responses: bool,
}

/// The hosts that a discovery protocol asks.
pub(super) struct Asked {
    pub(super) checked: &'static str,
    pub(super) text: String,
    pub(super) named: Vec<HostPort>,
    /// This many ports after each are queried, too.
    pub(super) range: u16,
    pub(super) is_list: bool,
    pub(super) remedy: &'static str,
}
