//! Probe: what a member answers to JGroups' diagnostics client (facts section 25).
//!
//! Off unless the transport's `diag.enabled` says otherwise. Requests come as datagrams to a multicast group or over
//! TCP; with a passcode, those that do not know it get no answer.

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

/// The groups that members listen on unless they are told another.
pub const GROUPS: [IpAddr; 2] = [DefaultGroups::PROBE.v4, DefaultGroups::PROBE.v6];
