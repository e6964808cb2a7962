//! A value that is read or written in pieces goes on where it was begun: on one connection (facts section 2.11).

use std::sync::Arc;
use std::time::Duration;

use consort_hotrod::ops::stream;
use consort_hotrod::{ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody, Status};

use crate::cache::RawCache;
use crate::error::{ClientError, ConnectionError};
use crate::link::{Call, CallError, Link};
use crate::operation::{Answer, Place, units};
use crate::slots::Failure;

/// A request for a piece, on its way.
pub(crate) type Asking = Call<Arc<Link>>;

/// Where a stream goes on.
pub(crate) struct Course {
    /// Keeps the client's connections, too.
    cache: RawCache,
    place: Place,
    timeout: Duration,
}

impl Course {
    /// Where this has come from.
    pub(crate) fn of(cache: RawCache, begun: &Answer) -> Self {
        let timeout = cache.options().timeout;
        Self { cache, place: begun.place.clone(), timeout }
    }

    /// The server's address.
    pub(crate) fn server(&self) -> String {
        self.place.server.to_string()
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
    pub(crate) async fn begin(&self, body: stream::Request) -> Result<Asking, ClientError> {
        let mut request = self.request(body);
        let deadline = self.place.link.clock.now() + self.timeout;
        let units = units(&request.body);
        let begun = self.place.link.begin(&mut request, units, deadline).await;
        begun.map_err(|error| self.error(error, request.body.opcode().name(), false))
    }

    /// What has come of a request. `writes` is whether it puts something into the cache.
    pub(crate) fn answered(
        &self,
        answer: Result<Response, CallError>,
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
        self.place.link.tell(&mut self.request(body), deadline);
    }

    /// It is not what answers such a request.
    pub(crate) fn misbehaved(&self, operation: &'static str, response: &Response) -> ClientError {
        let (server, found) = (self.server(), format!("{:?}", response.status));
        ClientError::Misbehaved { server, operation, found }
    }

    fn error(&self, error: CallError, operation: &'static str, writes: bool) -> ClientError {
        let server = self.server();
        match error {
            CallError::NotOpen => {
                let cause = self.place.server.trouble().unwrap_or(ConnectionError::Ended);
                ClientError::StreamLost { server, cause }
            }
            CallError::NoRoom => ClientError::TimedOut { after: self.timeout, may_be_done: false },
            CallError::Unsupported { needed, spoken } => {
                ClientError::Unsupported { operation, needed, server, spoken }
            }
            CallError::Failed(Failure { cause: None, was_sent }) => {
                ClientError::TimedOut { after: self.timeout, may_be_done: writes && was_sent }
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
