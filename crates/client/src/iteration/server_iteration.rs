//! One server's part of an iteration.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use consort_hotrod::ops::iteration::{Batch, Request, Response, Start};
use consort_hotrod::ops::listener::Factory;
use consort_hotrod::{BitSet, Flags, MediaType, RequestBody, ResponseBody, Status, Text};

use crate::client_state::{CacheState, ClientState};
use crate::error::ClientError;
use crate::operation::{NotExecuted, RequestSpec};
use crate::server::{Server, ServerConnection};

pub(super) struct IterationRequest {
    pub(super) client: Arc<ClientState>,
    pub(super) cache: Arc<CacheState>,
    pub(super) flags: Flags,
    pub(super) key_type: MediaType,
    pub(super) value_type: MediaType,
    pub(super) timeout: Duration,
    pub(super) filter: Option<Factory>,
    pub(super) with_metadata: bool,
}

impl IterationRequest {
    pub(super) fn ask(&self, body: RequestBody) -> RequestSpec {
        RequestSpec {
            body,
            flags: self.flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: self.timeout,
        }
    }
}

pub(super) struct SegmentSet {
    pub(super) server: Option<Arc<Server>>,
    /// Unfinished ones; `None` for all.
    pub(super) segments: Option<BTreeSet<usize>>,
}

pub(super) enum BatchError {
    /// The server or connection is lost, or the iteration is forgotten.
    Interrupted(Option<ClientError>),
    Failed(ClientError),
}

/// An iteration begun on a server, which ends there on drop.
pub(super) struct RemoteIteration {
    request: Arc<IterationRequest>,
    target: ServerConnection,
    id: Text,
}

impl Drop for RemoteIteration {
    fn drop(&mut self) {
        let end = self.request.ask(RequestBody::Iteration(Request::End(self.id.clone())));
        self.request.client.send_detached(&self.request.cache, end, &self.target);
    }
}

pub(super) type FetchedBatch = Result<(RemoteIteration, Batch), BatchError>;
pub(super) type Fetching = Pin<Box<dyn Future<Output = FetchedBatch> + Send>>;

pub(super) struct ServerIteration {
    pub(super) part: SegmentSet,
    pub(super) remote: Option<RemoteIteration>,
    fetching: Option<Fetching>,
    begins: bool,
}

impl ServerIteration {
    pub(super) const fn new(part: SegmentSet) -> Self {
        Self { part, remote: None, fetching: None, begins: false }
    }

    pub(super) const fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    pub(super) fn fetch(&mut self, request: &Arc<IterationRequest>, batch: u32) {
        let (request, remote, server) = (request.clone(), self.remote.take(), self.part.server.clone());
        self.begins = remote.is_none();
        let segments = self.part.segments.as_ref().map(|segments| segments.iter().copied().collect());
        self.fetching = Some(Box::pin(async move {
            let remote = match remote {
                Some(remote) => remote,
                None => begin(request, server, segments, batch).await?,
            };
            let batch = remote.next().await?;
            Ok((remote, batch))
        }));
    }

    pub(super) fn poll(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<FetchedBatch> {
        let Some(fetching) = &mut self.fetching else { return std::task::Poll::Pending };
        let fetched = std::task::ready!(fetching.as_mut().poll(cx));
        self.fetching = None;
        std::task::Poll::Ready(fetched)
    }

    /// Returns the pending start, which must complete: without its id the iteration cannot be ended.
    pub(super) fn abandon(self) -> Option<Fetching> {
        self.fetching.filter(|_| self.begins)
    }
}

async fn begin(
    request: Arc<IterationRequest>,
    server: Option<Arc<Server>>,
    segments: Option<BitSet>,
    batch: u32,
) -> Result<RemoteIteration, BatchError> {
    let start =
        Start { segments, filter: request.filter.clone(), batch, with_metadata: request.with_metadata };
    let ask = request.ask(RequestBody::Iteration(Request::Start(start)));
    let answer = request.client.perform(&request.cache, ask, server).await.map_err(BatchError::Failed)?;
    match answer.body {
        ResponseBody::Iteration(Response::Started(id)) => {
            Ok(RemoteIteration { request, target: answer.target, id })
        }
        _ => Err(BatchError::Failed(answer.unexpected())),
    }
}

impl RemoteIteration {
    pub(super) fn switches(&self) -> u64 {
        self.target.server.switches
    }

    async fn next(&self) -> Result<Batch, BatchError> {
        let request = &self.request;
        let ask = request.ask(RequestBody::Iteration(Request::Next(self.id.clone())));
        let answer = match request.client.perform_at(&request.cache, ask, &self.target).await {
            Ok(answer) => answer,
            Err(NotExecuted::TryAnotherServer(error)) => return Err(BatchError::Interrupted(error)),
            Err(NotExecuted::Failed(error)) => return Err(BatchError::Failed(error)),
        };
        match answer.body {
            _ if answer.status == Status::InvalidIteration => Err(BatchError::Interrupted(None)),
            ResponseBody::Iteration(Response::Batch(batch)) => Ok(batch),
            _ => Err(BatchError::Failed(answer.unexpected())),
        }
    }
}
