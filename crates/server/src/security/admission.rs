//! A connection whose client has not shown who it is: what is answered until it has.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{Request, RequestBody, RequestContext, Response, ResponseBody, Status, Text};

use crate::answer::Answer;
use crate::answering;
use crate::bounds::AUTH_FAILURES_MAX;
use crate::security::access::stranger;
use crate::security::authenticator::{Authenticator, Exchange, Origin, Step};
use crate::session::Session;

/// How it stands after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is not known yet who the client is.
    Unknown,
    /// It is known, and so is what it may do.
    Admitted,
    /// It has tried often enough.
    TurnedAway,
}

/// What a stranger has tried.
pub(crate) struct Admission {
    authenticator: Arc<Authenticator>,
    peer: Option<SocketAddr>,
    /// The name in the certificate that it has shown.
    certificate: Option<Arc<str>>,
    exchange: Option<Exchange>,
    failures: usize,
}

impl Admission {
    pub(crate) fn new(
        authenticator: Arc<Authenticator>,
        peer: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> Self {
        Self { authenticator, peer, certificate, exchange: None, failures: 0 }
    }

    /// The answer to a request, one at a time.
    pub(crate) async fn answer(
        &mut self,
        session: &Arc<Session>,
        mut request: Request,
    ) -> (RequestContext, Response, Verdict) {
        let (asked, id) = (request.context(), request.header.id);
        let (answer, verdict) = match &request.body {
            RequestBody::Server(server::Request::Ping) => {
                // Which caches there are, and where, is not told to strangers.
                request.header.cache = Text::EMPTY;
                let (asked, response, _) = answering::answer(session.clone(), request).await;
                return (asked, response, Verdict::Unknown);
            }
            RequestBody::Auth(auth::Request::Mechanisms) => {
                let names = auth::Response::Mechanisms(self.authenticator.names(self.certificate.as_deref()));
                (Answer::success(ResponseBody::Auth(names)), Verdict::Unknown)
            }
            RequestBody::Auth(auth::Request::Step(mechanism, message)) => {
                self.step(session, mechanism.as_str(), message).await
            }
            body => (stranger(body.opcode().name()), Verdict::Unknown),
        };
        (asked, Response::new(id, answer.status, answer.body), verdict)
    }

    async fn step(&mut self, session: &Session, mechanism: &str, message: &Bytes) -> (Answer, Verdict) {
        let answer = |response| Answer::success(ResponseBody::Auth(response));
        let origin = Origin { peer: self.peer, certificate: self.certificate.as_deref() };
        let step = self.authenticator.step(&mut self.exchange, mechanism, message, origin).await;
        // Who has been removed meanwhile is not admitted.
        let step = step.and_then(|step| {
            if let Step::Admitted(user, _) = &step {
                session.access.grant(user, session.outlet.end())?;
            }
            Ok(step)
        });
        match step {
            Ok(Step::Challenge(challenge)) => {
                (answer(auth::Response::Challenge(challenge)), Verdict::Unknown)
            }
            Ok(Step::Admitted(user, last)) => {
                tracing::debug!(user = %user.name, %mechanism, "a client has shown who it is");
                // What a mechanism says with its end is a challenge, too, to which nobody answers (facts section 5.1).
                let response = last.map_or(auth::Response::Done, auth::Response::Challenge);
                (answer(response), Verdict::Admitted)
            }
            Err(rejection) => {
                self.failures += 1;
                session.caches.telemetry.rejections.one();
                self.authenticator.note(&rejection, self.peer);
                let is_last = self.failures >= AUTH_FAILURES_MAX;
                let verdict = if is_last { Verdict::TurnedAway } else { Verdict::Unknown };
                (Answer::error(Status::ServerError, rejection.to_string()), verdict)
            }
        }
    }
}
