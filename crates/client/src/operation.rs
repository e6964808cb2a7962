//! An operation from request to response: routing, retries, failover.

use std::sync::Arc;
use std::time::Duration;

use consort_hotrod::ops::counter::{self, Action};
use consort_hotrod::ops::{bulk, listener, map, multimap, stream, task};
use consort_hotrod::{
    Flags, MediaType, ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody, Status,
};
use consort_protostream::QueryRequest;
use smallvec::SmallVec;
use tokio::time::timeout_at;

use crate::client_state::{CacheState, ClientState};
use crate::clock::Time;
use crate::connection::handle::{CallError, ConnectionHandle};
use crate::connection::pending_requests::Failure;
use crate::error::{ClientError, ConnectionError};
use crate::limits::ROOM_UNIT;
use crate::routing::Routing;
use crate::server::{Server, ServerConnection};

/// The suffix of a server's message about a write with an unknown outcome.
const MAY_BE_DONE: &str = "; the write may have been done";

pub(crate) struct RequestSpec {
    pub(crate) body: RequestBody,
    pub(crate) flags: Flags,
    pub(crate) key_type: MediaType,
    pub(crate) value_type: MediaType,
    pub(crate) timeout: Duration,
}

pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) body: ResponseBody,
    pub(crate) target: ServerConnection,
    operation: &'static str,
}

/// The reason why a request bound to one connection was not executed.
pub(crate) enum NotExecuted {
    Failed(ClientError),
    /// Another server may execute it.
    TryAnotherServer(Option<ClientError>),
}

impl Answer {
    pub(crate) fn unexpected(&self) -> ClientError {
        ClientError::ProtocolViolation {
            server: self.target.server.to_string(),
            operation: self.operation,
            found: format!("{:?}", self.status),
        }
    }
}

fn is_repeatable(body: &RequestBody) -> bool {
    match body {
        RequestBody::Map(request) => matches!(
            request,
            map::Request::Get(_)
                | map::Request::ContainsKey(_)
                | map::Request::GetWithVersion(_)
                | map::Request::GetWithMetadata(_)
        ),
        RequestBody::Bulk(request) => !matches!(request, bulk::Request::Clear | bulk::Request::PutAll(..)),
        // Iterations and listeners belong to one server and begin anew on another.
        RequestBody::Iteration(_) | RequestBody::Listener(_) => true,
        RequestBody::Server(_) | RequestBody::Counter(counter::Request::Names) => true,
        RequestBody::Counter(counter::Request::Of(_, action)) => {
            matches!(action, Action::Get | Action::Configuration | Action::IsDefined | Action::AddListener(_))
        }
        RequestBody::Multimap(request) => !matches!(
            request.action,
            multimap::Action::Put(_) | multimap::Action::RemoveKey(_) | multimap::Action::RemoveEntry(_)
        ),
        // Beginning a stream changes nothing; the server discards a duplicate.
        RequestBody::Stream(request) => {
            matches!(request, stream::Request::StartGet(..) | stream::Request::StartPut(_))
        }
        RequestBody::Task(task::Request::Query(query)) => {
            QueryRequest::read(query).is_ok_and(|query| !query.is_delete())
        }
        _ => false,
    }
}

pub(crate) fn units(body: &RequestBody) -> u32 {
    let bytes = match body {
        RequestBody::Map(request) => {
            let value = match request {
                map::Request::Put(to)
                | map::Request::PutIfAbsent(to)
                | map::Request::Replace(to)
                | map::Request::ReplaceIfUnmodified(to, _) => to.value.len(),
                _ => 0,
            };
            request.key().len() + value
        }
        RequestBody::Bulk(bulk::Request::PutAll(_, entries)) => {
            entries.iter().map(|(key, value)| key.len() + value.len()).sum()
        }
        RequestBody::Bulk(bulk::Request::GetAll(keys)) => keys.iter().map(bytes::Bytes::len).sum(),
        RequestBody::Multimap(request) => match &request.action {
            multimap::Action::Put(to)
            | multimap::Action::RemoveEntry(to)
            | multimap::Action::ContainsEntry(to) => to.key.len() + to.value.len(),
            multimap::Action::ContainsValue(_, value) => value.len(),
            _ => body.key().map_or(0, bytes::Bytes::len),
        },
        RequestBody::Stream(stream::Request::NextPut(_, _, piece)) => piece.len(),
        RequestBody::Listener(listener::Request::UpdateBloom(bits)) => bits.as_bytes().len(),
        _ => 0,
    };
    u32::try_from(1 + bytes / ROOM_UNIT).unwrap_or(u32::MAX)
}

enum AttemptOutcome {
    Done(Answer),
    Failed(ClientError),
    /// Fail with the error if there is no other server.
    TryAnotherServer(Option<ClientError>),
}

struct Operation<'a> {
    client: &'a ClientState,
    cache: &'a CacheState,
    request: Request,
    is_repeatable: bool,
    units: u32,
    timeout: Duration,
    deadline: Time,
}

impl ClientState {
    pub(crate) async fn perform(
        &self,
        cache: &CacheState,
        ask: RequestSpec,
        preferred: Option<Arc<Server>>,
    ) -> Result<Answer, ClientError> {
        self.perform_with(cache, ask, preferred, |_| {}).await
    }

    /// Performs a request with a callback before each attempt.
    pub(crate) async fn perform_with(
        &self,
        cache: &CacheState,
        ask: RequestSpec,
        preferred: Option<Arc<Server>>,
        prepare: impl FnMut(&ServerConnection),
    ) -> Result<Answer, ClientError> {
        self.operation(cache, ask).run(preferred, prepare).await
    }

    pub(crate) async fn perform_at(
        &self,
        cache: &CacheState,
        ask: RequestSpec,
        target: &ServerConnection,
    ) -> Result<Answer, NotExecuted> {
        let mut operation = self.operation(cache, ask);
        let topology_id = operation.topology_id(cache.routing().as_deref());
        match operation.attempt(target, topology_id).await {
            AttemptOutcome::Done(answer) => Ok(answer),
            AttemptOutcome::Failed(error) => Err(NotExecuted::Failed(error)),
            AttemptOutcome::TryAnotherServer(error) => Err(NotExecuted::TryAnotherServer(error)),
        }
    }

    pub(crate) fn send_detached(&self, cache: &CacheState, ask: RequestSpec, target: &ServerConnection) {
        let mut operation = self.operation(cache, ask);
        target.handle.send_detached(&mut operation.request, operation.deadline);
    }

    fn operation<'a>(&'a self, cache: &'a CacheState, ask: RequestSpec) -> Operation<'a> {
        let RequestSpec { body, flags, key_type, value_type, timeout } = ask;
        let header = RequestHeader {
            cache: cache.name.clone(),
            flags,
            intelligence: self.settings.intelligence,
            key_type,
            value_type,
            ..RequestHeader::new(0, ProtocolVersion::NEWEST)
        };
        Operation {
            client: self,
            cache,
            is_repeatable: is_repeatable(&body),
            units: units(&body),
            request: Request { header, body },
            timeout,
            deadline: self.clock.now() + timeout,
        }
    }
}

impl Operation<'_> {
    async fn run(
        mut self,
        preferred: Option<Arc<Server>>,
        mut prepare: impl FnMut(&ServerConnection),
    ) -> Result<Answer, ClientError> {
        // Servers that failed.
        let mut avoided: SmallVec<[Arc<Server>; 2]> = SmallVec::new();
        let mut last_error = None;
        loop {
            if self.client.is_closed() {
                return Err(ClientError::Closed);
            }
            let routing = self.cache.routing();
            let chosen = self.choose(routing.as_deref(), preferred.as_ref(), &avoided);
            let Some((server, handle)) = chosen else {
                // No server is left that has not failed.
                if let Some(error) = last_error.take() {
                    return Err(error);
                }
                avoided.clear();
                self.wait(preferred.as_ref()).await?;
                continue;
            };
            let target = ServerConnection { server, handle };
            prepare(&target);
            let topology_id = self.topology_id(routing.as_deref());
            match self.attempt(&target, topology_id).await {
                AttemptOutcome::Done(answer) => return Ok(answer),
                AttemptOutcome::Failed(error) => return Err(error),
                AttemptOutcome::TryAnotherServer(error) => {
                    last_error = error.or(last_error);
                    avoided.push(target.server);
                }
            }
        }
    }

    fn topology_id(&self, routing: Option<&Routing<Arc<Server>>>) -> i32 {
        routing.map_or_else(|| self.client.clusters.no_topology(), Routing::id)
    }

    async fn attempt(&mut self, target: &ServerConnection, topology_id: i32) -> AttemptOutcome {
        self.request.header.topology_id = topology_id;
        let called =
            target.handle.call(&mut self.request, self.units, self.deadline, self.is_repeatable).await;
        self.ended(target, called)
    }

    fn choose(
        &self,
        routing: Option<&Routing<Arc<Server>>>,
        preferred: Option<&Arc<Server>>,
        avoided: &[Arc<Server>],
    ) -> Option<(Arc<Server>, Arc<ConnectionHandle>)> {
        let key = self.request.body.key().map(|key| &key[..]);
        self.client.choose(routing, preferred, key, avoided)
    }

    async fn wait(&self, preferred: Option<&Arc<Server>>) -> Result<(), ClientError> {
        let changed = self.client.changed();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // The known servers may be gone for good.
        self.client.start_initial();
        let routing = self.cache.routing();
        if self.client.is_closed() || self.choose(routing.as_deref(), preferred, &[]).is_some() {
            // A lost connection counts as open until its task has run.
            tokio::task::yield_now().await;
            return self.in_time();
        }
        let deadline = self.client.clock.instant(self.deadline);
        match timeout_at(deadline, changed).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.unreachable()),
        }
    }

    fn in_time(&self) -> Result<(), ClientError> {
        if self.client.clock.now() < self.deadline { Ok(()) } else { Err(self.unreachable()) }
    }

    fn unreachable(&self) -> ClientError {
        ClientError::Unreachable { after: self.timeout, cause: self.client.trouble() }
    }

    fn timed_out(&self, was_sent: bool) -> ClientError {
        ClientError::TimedOut { after: self.timeout, is_outcome_unknown: was_sent && !self.is_repeatable }
    }

    fn ended(&self, target: &ServerConnection, called: Result<Response, CallError>) -> AttemptOutcome {
        let server = &target.server;
        let operation = self.request.body.opcode().name();
        let response = match called {
            Ok(response) => response,
            Err(CallError::NotOpen) => return AttemptOutcome::TryAnotherServer(None),
            Err(CallError::NoRoom) => return AttemptOutcome::Failed(self.timed_out(false)),
            Err(CallError::Unsupported { needed, spoken }) => {
                let server = server.to_string();
                return AttemptOutcome::Failed(ClientError::Unsupported {
                    operation,
                    needed,
                    server,
                    spoken,
                });
            }
            Err(CallError::Failed(Failure { cause: None, was_sent })) => {
                return AttemptOutcome::Failed(self.timed_out(was_sent));
            }
            Err(CallError::Failed(Failure { cause: Some(cause), was_sent })) => {
                return self.uncertain(server, cause, was_sent);
            }
        };
        if let Some(topology) = &response.topology {
            self.client.learn(self.cache, topology, server);
        }
        self.client.retire_unlisted_servers();
        if let ResponseBody::Error(text) = &response.body {
            return self.refused(server, response.status, text.as_str());
        }
        let Response { status, body, .. } = response;
        AttemptOutcome::Done(Answer { status, body, target: target.clone(), operation })
    }

    fn uncertain(&self, server: &Server, cause: ConnectionError, was_sent: bool) -> AttemptOutcome {
        if self.client.is_closed() {
            AttemptOutcome::Failed(ClientError::Closed)
        } else if self.is_repeatable || !was_sent {
            AttemptOutcome::TryAnotherServer(None)
        } else {
            AttemptOutcome::Failed(ClientError::Uncertain { server: server.to_string(), cause })
        }
    }

    fn refused(&self, server: &Server, status: Status, text: &str) -> AttemptOutcome {
        let error = || ClientError::Server { server: server.to_string(), status, message: text.to_owned() };
        match status {
            // The protocol has no other sign (facts section 2.5).
            Status::ParseError if says(text, "CacheNotFoundException") => {
                AttemptOutcome::Failed(ClientError::NoSuchCache(self.cache.name.to_string()))
            }
            Status::ServerError if says(text, "SecurityException") => {
                let (server, message) = (server.to_string(), text.to_owned());
                AttemptOutcome::Failed(ClientError::Denied { server, message })
            }
            // The cache is not running there: the request was not executed.
            Status::IllegalLifecycle => AttemptOutcome::TryAnotherServer(Some(error())),
            Status::NodeSuspected if self.is_repeatable => AttemptOutcome::TryAnotherServer(Some(error())),
            Status::NodeSuspected => AttemptOutcome::Failed(ClientError::Uncertain {
                server: server.to_string(),
                // Consort's servers add the same suffix.
                cause: ConnectionError::Suspected(text.trim_end_matches(MAY_BE_DONE).to_owned()),
            }),
            _ => AttemptOutcome::Failed(error()),
        }
    }
}

/// Whether a server's message names this exception outside of quotes, which may be keys.
fn says(text: &str, exception: &str) -> bool {
    text.split('"').next().is_some_and(|own| own.contains(exception))
}
