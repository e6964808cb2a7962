//! HTTP while the server does not serve: it may wait for other members, or have left a cluster that an operator has stopped. Probes
//! must not restart it.

use super::head::{Head, Method};
use super::health::Health;
use super::reply::{Code, Reply, TEXT};
use super::{Resource, method_not_allowed, not_found};

/// Why a server does not serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotServing {
    Starting,
    /// With all other servers. The process waits for its end.
    Stopped,
}

impl NotServing {
    const fn health(self) -> &'static str {
        match self {
            Self::Starting => Health::Initializing.name(),
            Self::Stopped => "STOPPED",
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Starting => "not serving yet; see the server's log for the reason",
            Self::Stopped => "an operator has stopped the cluster; this process waits for SIGTERM",
        }
    }
}

pub(super) fn reply(head: &Head, state: NotServing) -> Reply {
    if head.method == Method::Other {
        return method_not_allowed();
    }
    match Resource::at(&head.path) {
        None => not_found(),
        Some(Resource::Live) => Reply::text(Code::Ok, "live"),
        Some(Resource::Status) => Reply::new(Code::Ok, TEXT, state.health()),
        Some(Resource::Ready) => Reply::text(Code::Unavailable, state.health()),
        Some(Resource::Started | Resource::Detail | Resource::Metrics) => {
            Reply::text(Code::Unavailable, state.reason())
        }
    }
}
