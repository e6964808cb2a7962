//! What is told in HTTP before a server serves: it may have to wait for others of its cluster, and is not to be taken for dead
//! and ended.

use super::head::{Head, Method};
use super::health::Health;
use super::reply::{Code, Reply, TEXT};
use super::{Resource, only_read, unknown};

pub(super) fn reply(head: &Head) -> Reply {
    if head.method == Method::Other {
        return only_read();
    }
    match Resource::at(&head.path) {
        None => unknown(),
        Some(Resource::Live) => Reply::text(Code::Ok, "live"),
        Some(Resource::Status) => Reply::new(Code::Ok, TEXT, Health::Initializing.name()),
        Some(Resource::Ready) => Reply::text(Code::Unavailable, Health::Initializing.name()),
        Some(Resource::Started | Resource::Detail | Resource::Metrics) => {
            Reply::text(Code::Unavailable, "not serving yet: the server's log says what it waits for")
        }
    }
}
