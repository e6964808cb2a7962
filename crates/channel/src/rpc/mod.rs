//! Remote procedure calls.
//!
//! The wire format is that of JGroups' MessageDispatcher and RpcDispatcher; either side may be Java.

mod correlator;
mod dispatcher;
mod failure;
mod request;
mod stats;

use failure::failure_payload;

pub use failure::failure_text;

pub use dispatcher::{Responder, RpcDispatcher, RpcHandler, successes};
pub use request::{FilterDecision, RequestOptions, Response, ResponseFilter, ResponseMode, Responses};
pub use stats::{RpcStats, RttSummary};
