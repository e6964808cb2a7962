//! A connection before authentication: the server only responds to PING and authentication.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{
    CacheTopology, Request, RequestBody, RequestContext, RequestHeader, Response, ResponseBody, Status,
};

use crate::limits::AUTH_FAILURES_MAX;
use crate::ops::dispatch;
use crate::ops::session::Session;
use crate::reply::Answer;
use crate::security::access::not_authenticated;
use crate::security::authenticator::{Authenticator, Exchange, Origin, Step};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AuthStep {
    Unauthenticated,
    Authenticated,
    Rejected,
}

pub(crate) struct PreAuthSession {
    authenticator: Arc<Authenticator>,
    peer: Option<SocketAddr>,
    certificate: Option<Arc<str>>,
    exchange: Option<Exchange>,
    failures: usize,
}

impl PreAuthSession {
    pub(crate) fn new(
        authenticator: Arc<Authenticator>,
        peer: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> Self {
        Self { authenticator, peer, certificate, exchange: None, failures: 0 }
    }

    /// Requests come one at a time.
    pub(crate) async fn answer(
        &mut self,
        session: &Arc<Session>,
        request: Request,
    ) -> (RequestContext, Response, AuthStep) {
        let (context, id) = (request.context(), request.header.id);
        let (answer, auth_step) = match &request.body {
            RequestBody::Server(server::Request::Ping) => {
                // Unauthenticated clients do not learn the names of caches or their topologies.
                (dispatch::pong(None), AuthStep::Unauthenticated)
            }
            RequestBody::Auth(auth::Request::Mechanisms) => {
                let names = auth::Response::Mechanisms(self.authenticator.names(self.certificate.as_deref()));
                (Answer::success(ResponseBody::Auth(names)), AuthStep::Unauthenticated)
            }
            RequestBody::Auth(auth::Request::Step(mechanism, message)) => {
                self.step(session, mechanism.as_str(), message).await
            }
            body => (not_authenticated(body.opcode().name()), AuthStep::Unauthenticated),
        };
        let topology = match auth_step {
            AuthStep::Authenticated => topology(session, &request.header),
            AuthStep::Unauthenticated | AuthStep::Rejected => None,
        };
        (context, Response { topology, ..Response::new(id, answer.status, answer.body) }, auth_step)
    }

    async fn step(&mut self, session: &Session, mechanism: &str, message: &Bytes) -> (Answer, AuthStep) {
        let answer = |response| Answer::success(ResponseBody::Auth(response));
        let origin = Origin { peer: self.peer, certificate: self.certificate.as_deref() };
        let step = self.authenticator.step(&mut self.exchange, mechanism, message, origin).await;
        // A user that was removed meanwhile is not authenticated.
        let step = step.and_then(|step| {
            if let Step::Authenticated(user, _) = &step {
                session.access.grant(user, session.events_out.close_handle())?;
            }
            Ok(step)
        });
        match step {
            Ok(Step::Challenge(challenge)) => {
                (answer(auth::Response::Challenge(challenge)), AuthStep::Unauthenticated)
            }
            Ok(Step::Authenticated(user, last)) => {
                tracing::debug!(user = %user.name, %mechanism, "client authenticated");
                // The last message of a mechanism is sent as a challenge, to which clients do not respond (facts section
                // 5.1).
                let response = last.map_or(auth::Response::Done, auth::Response::Challenge);
                (answer(response), AuthStep::Authenticated)
            }
            Err(rejection) => {
                self.failures += 1;
                session.caches.telemetry.rejections.one();
                self.authenticator.note(&rejection, self.peer);
                let is_last = self.failures >= AUTH_FAILURES_MAX;
                let auth_step = if is_last { AuthStep::Rejected } else { AuthStep::Unauthenticated };
                (Answer::error(Status::ServerError, rejection.to_string()), auth_step)
            }
        }
    }
}

/// Some clients name a cache when they authenticate, and get its topology with the last response, like with any other.
fn topology(session: &Session, header: &RequestHeader) -> Option<Arc<CacheTopology>> {
    let served = session.caches.get(header.cache.as_str())?;
    session.caches.topology_for(&served, header)
}
