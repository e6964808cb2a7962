//! A listener at a server: how it is added, and that it is removed (facts section 2.7).
//!
//! It stands at one server, which tells it of the changes of all. With the connection it is lost; who has added it adds
//! another one then.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::ops::listener::Request;
use consort_hotrod::{Flags, MediaType, RequestBody, Status};
use tokio::sync::Notify;

use crate::bounds::TIMEOUT;
use crate::client::{CacheState, Inner};
use crate::error::ClientError;
use crate::operation::{Ask, Place};
use crate::sinks::Sink;

/// The cache that listeners are of, and how its keys are told.
#[derive(Clone)]
pub(crate) struct Listened {
    pub(crate) client: Arc<Inner>,
    pub(crate) cache: Arc<CacheState>,
    pub(crate) key_type: MediaType,
    pub(crate) value_type: MediaType,
}

/// A listener that is being added or was. When it is dropped, its server is told.
pub(crate) struct Standing {
    listened: Listened,
    pub(crate) place: Place,
    id: Bytes,
    /// Told when the connection is lost.
    lost: Arc<Notify>,
}

impl Standing {
    /// Until nothing more is told.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.place.link.lock().sinks.remove(&self.id);
        let remove = self.listened.ask(Request::Remove(self.id.clone()), TIMEOUT);
        self.listened.client.tell(&self.listened.cache, remove, &self.place);
    }
}

/// Sixteen bytes that no other listener has.
fn new_id() -> Bytes {
    let random = || RandomState::new().build_hasher().finish().to_be_bytes();
    [random(), random()].concat().into()
}

impl Listened {
    pub(crate) fn ask(&self, request: Request, timeout: Duration) -> Ask {
        Ask {
            body: RequestBody::Listener(request),
            flags: Flags::NONE,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout,
        }
    }

    /// Adds a listener at a server that can be used. There is a new sink for each server that is tried, and what it has to
    /// notify when it is lost.
    pub(crate) async fn add(
        &self,
        request: impl FnOnce(Bytes) -> Request,
        timeout: Duration,
        mut sink: impl FnMut(&Place, Arc<Notify>) -> Arc<dyn Sink>,
    ) -> Result<Standing, ClientError> {
        let id = new_id();
        let ask = self.ask(request(id.clone()), timeout);
        let mut standing: Option<Standing> = None;
        let added = self.client.perform_with(&self.cache, ask, None, |place| {
            // The one before may be of the same connection.
            standing = None;
            let lost = Arc::new(Notify::new());
            let sink = sink(place, lost.clone());
            let mut connection = place.link.lock();
            // One that is not open refuses the request, too.
            if connection.is_open() {
                connection.sinks.add(id.clone(), sink);
            }
            drop(connection);
            let (listened, place) = (self.clone(), place.clone());
            standing = Some(Standing { listened, place, id: id.clone(), lost });
        });
        let answer = added.await?;
        let standing = standing.filter(|_| answer.status == Status::Success);
        standing.ok_or_else(|| answer.unexpected())
    }
}
