//! Values in chunks. All requests of a value use the connection on which it was begun (facts section 2.11).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use consort_hotrod::ops::stream;
use consort_hotrod::{ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody, Status};

use crate::cache::RawCache;
use crate::connection::handle::{Call, CallError, ConnectionHandle};
use crate::connection::pending_requests::Failure;
use crate::error::{ClientError, ConnectionError};
use crate::operation::{Answer, units};
use crate::server::ServerConnection;

pub(crate) type Answered = Result<Response, CallError>;

enum Piece {
    Asked(Call<Arc<ConnectionHandle>>),
    Answered(Answered),
}

impl Piece {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Asked(call) = self {
            match Pin::new(call).poll(cx) {
                Poll::Ready(answered) => *self = Self::Answered(answered),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

/// The requests in flight, in order, with the outcomes not yet taken.
#[derive(Default)]
pub(crate) struct InFlightChunks(VecDeque<Piece>);

impl InFlightChunks {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Waits for `together` requests at once if the first is not ready, so that the task wakes once for all. `None` if none is in
    /// flight. Cancel-safe.
    pub(crate) async fn next(&mut self, together: usize) -> Option<Answered> {
        if let Some(Piece::Asked(_)) = self.0.front() {
            let count = together.clamp(1, self.0.len());
            // The last response usually arrives last.
            poll_fn(|cx| {
                let mut pieces = self.0.range_mut(..count).rev();
                if pieces.all(|piece| piece.poll(cx).is_ready()) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        match self.0.pop_front()? {
            Piece::Answered(answered) => Some(answered),
            Piece::Asked(call) => Some(call.await),
        }
    }
}

pub(crate) struct PinnedConnection {
    cache: RawCache,
    target: ServerConnection,
    timeout: Duration,
}

impl PinnedConnection {
    pub(crate) fn of(cache: RawCache, begun: &Answer) -> Self {
        let timeout = cache.options().timeout;
        Self { cache, target: begun.target.clone(), timeout }
    }

    pub(crate) fn server(&self) -> String {
        self.target.server.to_string()
    }

    pub(crate) fn has_other_requests(&self) -> bool {
        let now = self.target.handle.clock.now();
        self.target.handle.lock().has_other_requests(now)
    }

    fn request(&self, body: stream::Request) -> Request {
        let state = &self.cache.state;
        let header = RequestHeader {
            cache: state.name.clone(),
            intelligence: self.cache.client.settings.intelligence,
            topology_id: state.routing().map_or(-1, |routing| routing.id()),
            ..RequestHeader::new(0, ProtocolVersion::NEWEST)
        };
        Request { header, body: RequestBody::Stream(body) }
    }

    /// Sends a request after all earlier ones, with an operation's usual deadline.
    pub(crate) async fn begin(
        &self,
        body: stream::Request,
        under_way: &mut InFlightChunks,
    ) -> Result<(), ClientError> {
        let mut request = self.request(body);
        let deadline = self.target.handle.clock.now() + self.timeout;
        let units = units(&request.body);
        let begun = self.target.handle.begin(&mut request, units, deadline).await;
        let call = begun.map_err(|error| self.error(error, request.body.opcode().name(), false))?;
        under_way.0.push_back(Piece::Asked(call));
        Ok(())
    }

    /// `writes`: the request changes the cache.
    pub(crate) fn answered(
        &self,
        answer: Answered,
        operation: &'static str,
        writes: bool,
    ) -> Result<Response, ClientError> {
        let response = answer.map_err(|error| self.error(error, operation, writes))?;
        if let Some(topology) = &response.topology {
            self.cache.client.learn(&self.cache.state, topology, &self.target.server);
        }
        if let ResponseBody::Error(text) = &response.body {
            let (server, message) = (self.server(), text.as_str().to_owned());
            if writes && response.status == Status::NodeSuspected {
                return Err(ClientError::Uncertain { server, cause: ConnectionError::Suspected(message) });
            }
            return Err(ClientError::Server { server, status: response.status, message });
        }
        Ok(response)
    }

    /// If the request does not arrive, the server discards the stream after its timeout.
    pub(crate) fn end(&self, body: stream::Request) {
        let deadline = self.target.handle.clock.now() + self.timeout;
        self.target.handle.send_detached(&mut self.request(body), deadline);
    }

    pub(crate) fn protocol_violation(&self, operation: &'static str, response: &Response) -> ClientError {
        let (server, found) = (self.server(), format!("{:?}", response.status));
        ClientError::ProtocolViolation { server, operation, found }
    }

    fn error(&self, error: CallError, operation: &'static str, writes: bool) -> ClientError {
        let server = self.server();
        match error {
            CallError::NotOpen => {
                let cause = self.target.server.trouble().unwrap_or(ConnectionError::ClosedLocally);
                ClientError::StreamLost { server, cause }
            }
            CallError::NoRoom => ClientError::TimedOut { after: self.timeout, is_outcome_unknown: false },
            CallError::Unsupported { needed, spoken } => {
                ClientError::Unsupported { operation, needed, server, spoken }
            }
            CallError::Failed(Failure { cause: None, was_sent }) => {
                ClientError::TimedOut { after: self.timeout, is_outcome_unknown: writes && was_sent }
            }
            CallError::Failed(Failure { cause: Some(cause), was_sent }) if writes && was_sent => {
                ClientError::Uncertain { server, cause }
            }
            CallError::Failed(Failure { cause: Some(cause), .. }) => {
                ClientError::StreamLost { server, cause }
            }
        }
    }
}
