//! Probe: responses to JGroups' diagnostics client.
//!
//! Off unless `diag.enabled` is true. Requests come over a multicast group or TCP; with a passcode, others get no response.

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

/// The default groups.
pub const GROUPS: [IpAddr; 2] = [DefaultGroups::PROBE.v4, DefaultGroups::PROBE.v6];
