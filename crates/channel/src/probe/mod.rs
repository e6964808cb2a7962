//! Probe: a member's responses to JGroups' diagnostics client.
//!
//! Off unless the transport's `diag.enabled` is true. Requests arrive as datagrams to a multicast group or over TCP.
//! With a passcode, requests without it get no response.

mod answer;
mod keys;
mod layers;
mod passcode;
mod serve;

use std::net::IpAddr;

use consort_net::DefaultGroups;

pub use answer::{ANSWER_LEN_MAX, Answerer};
pub use passcode::{PASSCODE_PREFIX, checked, passcode_prefix};
pub(crate) use serve::{Responder, start};

/// The default groups that members listen on.
pub const GROUPS: [IpAddr; 2] = [DefaultGroups::PROBE.v4, DefaultGroups::PROBE.v6];
