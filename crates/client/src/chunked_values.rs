//! A value that is read or written in pieces goes on where it was begun: on one connection (facts section 2.11).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use consort_hotrod::ops::stream;
use consort_hotrod::{ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody, Status};

use crate::cache::RawCache;
use crate::error::{ClientError, ConnectionError};
use crate::connection_handle::{Call, CallError, ConnectionHandle};
use crate::operation::{Answer, ServerConnection, units};
use crate::pending_requests::Failure;

/// What has come of a request for a piece.
pub(crate) type Answered = Result<Response, CallError>;

/// A request for a piece.
enum Piece {
    Asked(Call<Arc<ConnectionHandle>>),
    /// It has its answer, or will have none.
    Answered(Answered),
}

impl Piece {
    /// Whether it is over. If not, who asks is woken when it is.
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

/// Requests for pieces that are under way, in their order, and answers that nobody has taken yet.
#[derive(Default)]
pub(crate) struct InFlightChunks(VecDeque<Piece>);

impl InFlightChunks {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What has come of the first; nothing if there is none. Unless that is there, so many of them are awaited together:
    /// who waits is woken once for them. A future of it that is dropped loses nothing.
    pub(crate) async fn next(&mut self, together: usize) -> Option<Answered> {
        if let Some(Piece::Asked(_)) = self.0.front() {
            let count = together.clamp(1, self.0.len());
            // The last of them comes last, as a rule.
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

/// Where a stream goes on.
pub(crate) struct PinnedConnection {
    /// Keeps the client's connections, too.
    cache: RawCache,
    place: ServerConnection,
    timeout: Duration,
}

impl PinnedConnection {
    /// Where this has come from.
    pub(crate) fn of(cache: RawCache, begun: &Answer) -> Self {
        let timeout = cache.options().timeout;
        Self { cache, place: begun.place.clone(), timeout }
    }

    /// The server's address.
    pub(crate) fn server(&self) -> String {
        self.place.server.to_string()
    }

    /// Whether others ask something on the same connection.
    pub(crate) fn has_others(&self) -> bool {
        let now = self.place.link.clock.now();
        self.place.link.lock().has_others(now)
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

    /// Sends a request, after all that were sent before. Its answer may take as long as any operation.
    pub(crate) async fn begin(
        &self,
        body: stream::Request,
        under_way: &mut InFlightChunks,
    ) -> Result<(), ClientError> {
        let mut request = self.request(body);
        let deadline = self.place.link.clock.now() + self.timeout;
        let units = units(&request.body);
        let begun = self.place.link.begin(&mut request, units, deadline).await;
        let call = begun.map_err(|error| self.error(error, request.body.opcode().name(), false))?;
        under_way.0.push_back(Piece::Asked(call));
        Ok(())
    }

    /// What has come of a request. `writes` is whether it puts something into the cache.
    pub(crate) fn answered(
        &self,
        answer: Answered,
        operation: &'static str,
        writes: bool,
    ) -> Result<Response, ClientError> {
        let response = answer.map_err(|error| self.error(error, operation, writes))?;
        if let Some(topology) = &response.topology {
            self.cache.client.learn(&self.cache.state, topology, &self.place.server);
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

    /// Ends a stream that nobody wants any more. If that does not reach the server, it forgets it in its time.
    pub(crate) fn end(&self, body: stream::Request) {
        let deadline = self.place.link.clock.now() + self.timeout;
        self.place.link.send_detached(&mut self.request(body), deadline);
    }

    /// It is not what answers such a request.
    pub(crate) fn protocol_violation(&self, operation: &'static str, response: &Response) -> ClientError {
        let (server, found) = (self.server(), format!("{:?}", response.status));
        ClientError::ProtocolViolation { server, operation, found }
    }

    fn error(&self, error: CallError, operation: &'static str, writes: bool) -> ClientError {
        let server = self.server();
        match error {
            CallError::NotOpen => {
                let cause = self.place.server.trouble().unwrap_or(ConnectionError::ClosedLocally);
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
