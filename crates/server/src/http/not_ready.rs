//! HTTP before the server serves: it may wait for other members, and probes must not restart it.

use super::head::{Head, Method};
use super::health::Health;
use super::reply::{Code, Reply, TEXT};
use super::{Resource, method_not_allowed, not_found};

pub(super) fn reply(head: &Head) -> Reply {
    if head.method == Method::Other {
        return method_not_allowed();
    }
    match Resource::at(&head.path) {
        None => not_found(),
        Some(Resource::Live) => Reply::text(Code::Ok, "live"),
        Some(Resource::Status) => Reply::new(Code::Ok, TEXT, Health::Initializing.name()),
        Some(Resource::Ready) => Reply::text(Code::Unavailable, Health::Initializing.name()),
        Some(Resource::Started | Resource::Detail | Resource::Metrics) => {
            Reply::text(Code::Unavailable, "not serving yet; see the server's log for the reason")
        }
    }
}
