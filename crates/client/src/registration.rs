//! The registration of a listener at a server, which reports the whole cluster's changes; removed on drop (facts sections 2.7 and
//! 2.14). It is lost with the connection; its owner makes a new one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_hotrod::ops::{counter, listener};
use consort_hotrod::{Flags, MediaType, RequestBody, Status, Text};
use tokio::sync::Notify;

use crate::client_state::{CacheState, ClientState};
use crate::connection::sinks::Sink;
use crate::error::ClientError;
use crate::operation::RequestSpec;
use crate::server::ServerConnection;

#[derive(Clone)]
pub(crate) enum ListenTarget {
    Entries,
    Counter(Text),
}

impl ListenTarget {
    fn remove(&self, id: Bytes) -> RequestBody {
        match self {
            Self::Entries => RequestBody::Listener(listener::Request::Remove(id)),
            Self::Counter(name) => {
                let action = counter::Action::RemoveListener(id);
                RequestBody::Counter(counter::Request::Of(name.clone(), action))
            }
        }
    }
}

/// The cache of a listener, with its events' media types.
#[derive(Clone)]
pub(crate) struct ListenedCache {
    pub(crate) client: Arc<ClientState>,
    pub(crate) cache: Arc<CacheState>,
    pub(crate) key_type: MediaType,
    pub(crate) value_type: MediaType,
    pub(crate) subject: ListenTarget,
}

pub(crate) struct ListenerRegistration {
    listened: ListenedCache,
    pub(crate) target: ServerConnection,
    id: Bytes,
    lost: Arc<Notify>,
}

impl ListenerRegistration {
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for ListenerRegistration {
    fn drop(&mut self) {
        self.target.handle.lock().sinks.remove(&self.id);
        let timeout = self.listened.client.settings.timeout;
        let remove = self.listened.ask(self.listened.subject.remove(self.id.clone()), timeout);
        self.listened.client.send_detached(&self.listened.cache, remove, &self.target);
    }
}

fn new_id() -> Bytes {
    let random = || RandomState::new().build_hasher().finish().to_be_bytes();
    [random(), random()].concat().into()
}

impl ListenedCache {
    pub(crate) fn ask(&self, body: RequestBody, timeout: Duration) -> RequestSpec {
        RequestSpec {
            body,
            flags: Flags::NONE,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout,
        }
    }

    /// Creates a sink, with the handle for a loss, per server that it tries.
    pub(crate) async fn add(
        &self,
        request: impl FnOnce(Bytes) -> RequestBody,
        timeout: Duration,
        mut sink: impl FnMut(&ServerConnection, Arc<Notify>) -> Arc<dyn Sink>,
    ) -> Result<ListenerRegistration, ClientError> {
        let id = new_id();
        let ask = self.ask(request(id.clone()), timeout);
        let mut registration: Option<ListenerRegistration> = None;
        let added = self.client.perform_with(&self.cache, ask, None, |target| {
            // The previous attempt may have used the same connection.
            registration = None;
            let lost = Arc::new(Notify::new());
            let sink = sink(target, lost.clone());
            let mut connection = target.handle.lock();
            // A closed connection refuses the request, too.
            if connection.is_open() {
                connection.sinks.add(id.clone(), sink);
            }
            drop(connection);
            let (listened, target) = (self.clone(), target.clone());
            registration = Some(ListenerRegistration { listened, target, id: id.clone(), lost });
        });
        let answer = added.await?;
        match (&self.subject, answer.status, registration) {
            (_, Status::Success, Some(registration)) => Ok(registration),
            (ListenTarget::Counter(name), Status::NotFound, _) => {
                Err(ClientError::NoSuchCounter(name.to_string()))
            }
            _ => Err(answer.unexpected()),
        }
    }
}
