//! A part of a walk, at one server: its beginning, its batches, its end.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use consort_hotrod::ops::iteration::{Batch, Request, Response, Start};
use consort_hotrod::ops::listener::Factory;
use consort_hotrod::{BitSet, Flags, MediaType, RequestBody, ResponseBody, Status, Text};

use crate::client::{CacheState, Inner};
use crate::error::ClientError;
use crate::operation::{Ask, NotDone, Place};
use crate::server::Server;

/// What all parts of a walk have in common.
pub(super) struct Asking {
    pub(super) client: Arc<Inner>,
    pub(super) cache: Arc<CacheState>,
    pub(super) flags: Flags,
    pub(super) key_type: MediaType,
    pub(super) value_type: MediaType,
    pub(super) timeout: Duration,
    pub(super) filter: Option<Factory>,
    pub(super) with_metadata: bool,
}

impl Asking {
    pub(super) fn ask(&self, body: RequestBody) -> Ask {
        Ask {
            body,
            flags: self.flags,
            key_type: self.key_type.clone(),
            value_type: self.value_type.clone(),
            timeout: self.timeout,
        }
    }
}

/// Segments that are to be gone through at one server.
pub(super) struct Part {
    pub(super) server: Option<Arc<Server>>,
    /// Those that are not finished; all, if it does not say.
    pub(super) segments: Option<BTreeSet<usize>>,
}

/// Why a part has no next batch.
pub(super) enum Broken {
    /// The server or the connection is gone, or it does not know the walk any more.
    Interrupted(Option<ClientError>),
    Failed(ClientError),
}

/// A walk that a server has begun. When it is dropped, the server is told.
pub(super) struct Begun {
    asking: Arc<Asking>,
    place: Place,
    id: Text,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let end = self.asking.ask(RequestBody::Iteration(Request::End(self.id.clone())));
        self.asking.client.tell(&self.asking.cache, end, &self.place);
    }
}

pub(super) type Fetched = Result<(Begun, Batch), Broken>;
pub(super) type Fetching = Pin<Box<dyn Future<Output = Fetched> + Send>>;

/// A part that is gone through.
pub(super) struct Lane {
    pub(super) part: Part,
    pub(super) begun: Option<Begun>,
    fetching: Option<Fetching>,
    /// What is fetched is the first batch.
    begins: bool,
}

impl Lane {
    pub(super) const fn new(part: Part) -> Self {
        Self { part, begun: None, fetching: None, begins: false }
    }

    pub(super) const fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    /// Asks for the next batch, of so many entries.
    pub(super) fn fetch(&mut self, asking: &Arc<Asking>, batch: u32) {
        let (asking, begun, server) = (asking.clone(), self.begun.take(), self.part.server.clone());
        self.begins = begun.is_none();
        let segments = self.part.segments.as_ref().map(|segments| segments.iter().copied().collect());
        self.fetching = Some(Box::pin(async move {
            let begun = match begun {
                Some(begun) => begun,
                None => begin(asking, server, segments, batch).await?,
            };
            let batch = begun.next().await?;
            Ok((begun, batch))
        }));
    }

    pub(super) fn poll(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Fetched> {
        let Some(fetching) = &mut self.fetching else { return std::task::Poll::Pending };
        let fetched = std::task::ready!(fetching.as_mut().poll(cx));
        self.fetching = None;
        std::task::Poll::Ready(fetched)
    }

    /// What has to go on although nobody wants its entries: a beginning, whose end cannot be asked for before its id is
    /// known.
    pub(super) fn abandon(self) -> Option<Fetching> {
        self.fetching.filter(|_| self.begins)
    }
}

async fn begin(
    asking: Arc<Asking>,
    server: Option<Arc<Server>>,
    segments: Option<BitSet>,
    batch: u32,
) -> Result<Begun, Broken> {
    let start = Start { segments, filter: asking.filter.clone(), batch, with_metadata: asking.with_metadata };
    let ask = asking.ask(RequestBody::Iteration(Request::Start(start)));
    let answer = asking.client.perform(&asking.cache, ask, server).await.map_err(Broken::Failed)?;
    match answer.body {
        ResponseBody::Iteration(Response::Started(id)) => Ok(Begun { asking, place: answer.place, id }),
        _ => Err(Broken::Failed(answer.unexpected())),
    }
}

impl Begun {
    /// The cluster that has begun it.
    pub(super) fn site(&self) -> u64 {
        self.place.server.site
    }

    async fn next(&self) -> Result<Batch, Broken> {
        let asking = &self.asking;
        let ask = asking.ask(RequestBody::Iteration(Request::Next(self.id.clone())));
        let answer = match asking.client.perform_at(&asking.cache, ask, &self.place).await {
            Ok(answer) => answer,
            Err(NotDone::Elsewhere(error)) => return Err(Broken::Interrupted(error)),
            Err(NotDone::Failed(error)) => return Err(Broken::Failed(error)),
        };
        match answer.body {
            _ if answer.status == Status::InvalidIteration => Err(Broken::Interrupted(None)),
            ResponseBody::Iteration(Response::Batch(batch)) => Ok(batch),
            _ => Err(Broken::Failed(answer.unexpected())),
        }
    }
}
