//! Health and metrics in HTTP, on the port of Hot Rod clients.
//!
//! Health needs no authentication, as in Infinispan, because probes have no password; health in detail and, by default, metrics
//! need the MONITOR permission.

pub(crate) mod health_port;

mod credentials;
mod exposition;
mod head;
mod health;
mod metrics;
pub(crate) mod not_ready;
mod process;
mod reply;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use consort_sasl::Mechanism;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use self::credentials::Credentials;
use self::head::{Head, HeadError, Method};
use self::health::Health;
use self::not_ready::NotServing;
use self::reply::{Code, JSON, Reply, TEXT};
use crate::catalog::caches::Caches;
use crate::limits::{CREDENTIALS_BYTES_MAX, HTTP_IDLE_MAX, HTTP_LINGER_MAX, UNREAD_EVENT_TIMEOUT};
use crate::memory::responses::Responses;
use crate::reply::ResponseBytes;
use crate::security::authenticator::{Origin, Step};
use crate::security::requirement::Requirement;
use crate::security::{Permission, Security};
use crate::shutdown::{Stage, closing};
use crate::transport::socket::{Incoming, Outgoing};

/// Methods are words in capitals; Hot Rod requests begin with 0xA0.
pub(crate) const fn begins_with(byte: u8) -> bool {
    byte.is_ascii_uppercase()
}

pub(crate) fn read_whole(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let Some((head, length)) = Head::read(bytes).map_err(|head_error| head_error.to_string())? else {
        return Ok(None);
    };
    let shown = head.authorization.as_deref().map(credentials::parse_authorization);
    let resource = Resource::at(&head.path);
    Ok(Some((format!("{head:?} {shown:?} {resource:?}"), length)))
}

pub(crate) fn only_tls() -> bytes::Bytes {
    Reply::text(Code::BadRequest, "this server accepts TLS only; use https://").into_bytes(true, true)
}

fn refusal_of_head(wrong: HeadError) -> Reply {
    let code = match wrong {
        HeadError::Malformed(_) | HeadError::NoHost | HeadError::Ambiguous(_) => Code::BadRequest,
        HeadError::TooLarge => Code::HeadTooLarge,
        HeadError::Version => Code::OtherVersion,
    };
    Reply::text(code, wrong)
}

fn not_found() -> Reply {
    Reply::text(
        Code::NotFound,
        "unknown path; use /health, /health/live, /health/ready, /health/started or /metrics",
    )
}

fn method_not_allowed() -> Reply {
    Reply::text(Code::MethodNotAllowed, "only GET and HEAD are supported").with("Allow", "GET, HEAD")
}

fn readiness(health: Health, failed: usize) -> Reply {
    match health {
        health if failed > 0 => {
            let text = format!(
                "{}: {failed} defined caches could not be opened on this server; see the log or \
                 /rest/v2/container/health",
                health.name(),
            );
            Reply::text(Code::Unavailable, text)
        }
        Health::Initializing => Reply::text(Code::Unavailable, Health::Initializing.name()),
        health => Reply::text(Code::Ok, health.name()),
    }
}

/// Bytes that are reserved for a long reply: without caches, and for each cache.
const REPLY_BYTES: usize = 48 * 1024;
const REPLY_BYTES_OF_CACHE: usize = 16 * 1024;

/// The metrics of a stack that is busy for longer are left out.
const STACK_ASKED_WITHIN: Duration = Duration::from_secs(1);

async fn stack_counts(caches: &Caches) -> Vec<metrics::StackMetric> {
    let counts = timeout(STACK_ASKED_WITHIN, caches.manager().stack_counts()).await;
    counts.ok().flatten().unwrap_or_default()
}

pub(crate) struct HttpConnection<'a> {
    pub(crate) caches: Result<&'a Caches, NotServing>,
    pub(crate) security: &'a Security,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) certificate: Option<Arc<str>>,
    pub(crate) from: Incoming<'a>,
    pub(crate) to: Outgoing<'a>,
    pub(crate) input: BytesMut,
    pub(crate) is_authenticated: bool,
    /// The health port has no authentication.
    pub(crate) is_health_port: bool,
}

impl HttpConnection<'_> {
    pub(crate) async fn serve(
        mut self,
        authentication_deadline: Instant,
        ending: &mut watch::Receiver<Stage>,
    ) -> io::Result<()> {
        let mut until = authentication_deadline;
        loop {
            let responded = tokio::select! {
                responded = timeout_at(until, self.next_request()) => responded,
                () = closing(ending) => return self.to.shutdown().await,
            };
            let Ok(Some((mut output, held, is_last))) = responded.unwrap_or(Ok(None)) else { return Ok(()) };
            let writing = async {
                while self.to.has_to_write(&output) {
                    self.to.write(&mut output).await?;
                }
                io::Result::Ok(())
            };
            timeout(UNREAD_EVENT_TIMEOUT, writing).await.map_err(io::Error::from)??;
            drop((output, held));
            if is_last {
                self.to.shutdown().await?;
                // Unread input would reset the connection, and the client might not receive the response.
                let _ = timeout(HTTP_LINGER_MAX, self.discard_input()).await;
                return Ok(());
            }
            // Requests of unauthenticated clients do not extend their time.
            if self.is_authenticated || self.security.authenticator.is_none() {
                until = Instant::now() + HTTP_IDLE_MAX;
            }
        }
    }

    /// `None` without a request; the flag closes the connection after the response.
    async fn next_request(&mut self) -> io::Result<Option<(bytes::Bytes, Option<Box<ResponseBytes>>, bool)>> {
        let head = loop {
            match Head::read(&self.input) {
                Ok(Some((head, length))) => {
                    self.input.advance(length);
                    break head;
                }
                Ok(None) => {
                    if !self.from.take(&mut self.input, CREDENTIALS_BYTES_MAX).await? {
                        return Ok(None);
                    }
                }
                Err(wrong) => return Ok(Some((refusal_of_head(wrong).into_bytes(true, true), None, true))),
            }
        };
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        let (reply, held, is_last) = match self.caches {
            Ok(caches) => {
                caches.telemetry.http_requests.one();
                let (reply, held) = self.answer(caches, &head).await;
                // A failed authentication closes the connection, so that each guess of a password needs a new one.
                let is_guess = reply.code == Code::Unauthorized && head.authorization.is_some();
                (reply, held, head.is_last || is_guess)
            }
            // The connection closes, because the server may serve by the next request.
            Err(state) => (not_ready::reply(&head, state), None, true),
        };
        Ok(Some((reply.into_bytes(head.method != Method::Head, is_last), held, is_last)))
    }

    async fn answer(&mut self, caches: &Caches, head: &Head) -> (Reply, Option<Box<ResponseBytes>>) {
        let Some(resource) = Resource::at(&head.path) else { return (not_found(), None) };
        if head.method == Method::Other {
            return (method_not_allowed(), None);
        }
        let is_open = match resource {
            Resource::Live | Resource::Started | Resource::Ready | Resource::Status => true,
            Resource::Detail => false,
            Resource::Metrics => self.security.public_metrics,
        };
        if !is_open && let Err(refusal) = self.permit(caches, head).await {
            return (refusal, None);
        }
        let held = match resource {
            Resource::Detail | Resource::Metrics => {
                let bytes = REPLY_BYTES + caches.all().len() * REPLY_BYTES_OF_CACHE;
                match Responses::new(&caches.memory).hold(bytes).await {
                    Ok(held) => Some(held),
                    Err(refusal) => return (Reply::text(Code::Unavailable, refusal.text()), None),
                }
            }
            _ => None,
        };
        let reply = match resource {
            // A serving server has started.
            Resource::Live | Resource::Started => Reply::text(Code::Ok, "live"),
            Resource::Ready if self.security.requirement.refuses() => {
                Reply::text(Code::Unavailable, Requirement::REFUSAL)
            }
            Resource::Ready => readiness(Health::of_caches(caches), caches.failed.len()),
            Resource::Status => {
                let reply = Reply::new(Code::Ok, TEXT, Health::of_cluster(caches).name());
                match health::memory_summary(caches) {
                    Some(memory) => reply.with("Consort-Memory", memory),
                    None => reply,
                }
            }
            Resource::Detail => Reply::new(Code::Ok, JSON, health::detail(caches)),
            Resource::Metrics => {
                let (counters, stack) = tokio::join!(caches.counters.defined(), stack_counts(caches));
                let (content_type, text) =
                    metrics::render(caches, self.security, counters, &stack, &head.accept);
                Reply::new(Code::Ok, content_type, text)
            }
        };
        (reply, held)
    }

    /// Refuses the client unless it has the MONITOR permission.
    async fn permit(&mut self, caches: &Caches, head: &Head) -> Result<(), Reply> {
        let Some(authenticator) = &self.security.authenticator else {
            let refuses = self.security.requirement.refuses();
            return if refuses { Err(Reply::text(Code::Forbidden, Requirement::REFUSAL)) } else { Ok(()) };
        };
        if self.is_health_port {
            let text = "this port serves health only; use the client port";
            return Err(Reply::text(Code::Forbidden, text));
        }
        let offered = authenticator.mechanisms();
        let unauthorized = |text: &str| match credentials::challenge(&offered) {
            Some(schemes) => Reply::text(Code::Unauthorized, text).with("WWW-Authenticate", schemes),
            None => Reply::text(
                Code::Forbidden,
                "authentication is required, and passwords and tokens are not accepted without TLS",
            ),
        };
        let shown = match (&head.authorization, &self.certificate) {
            (Some(authorization), _) => credentials::parse_authorization(authorization),
            (None, Some(_)) if offered.contains(&Mechanism::External) => {
                Some(Credentials { mechanism: Mechanism::External, message: Vec::new() })
            }
            (None, _) => None,
        };
        let Some(Credentials { mechanism, message }) = shown else {
            return Err(unauthorized("authentication is required"));
        };
        let origin = Origin { peer: self.peer, certificate: self.certificate.as_deref() };
        match authenticator.step(&mut None, mechanism.name(), &message, origin).await {
            Ok(Step::Authenticated(user, _)) if user.permissions.contain(Permission::Monitor) => {
                self.is_authenticated = true;
                Ok(())
            }
            Ok(Step::Authenticated(user, _)) => {
                let text = format!(
                    "ISPN000287: Unauthorized access: user '{}' lacks 'MONITOR' permission",
                    user.name
                );
                Err(Reply::text(Code::Forbidden, text))
            }
            Ok(Step::Challenge(_)) => Err(unauthorized("this mechanism cannot be used in HTTP")),
            Err(rejection) => {
                caches.telemetry.rejections.one();
                authenticator.note(&rejection, self.peer);
                Err(unauthorized(&rejection.to_string()))
            }
        }
    }

    async fn discard_input(&mut self) -> io::Result<()> {
        while self.from.take(&mut self.input, CREDENTIALS_BYTES_MAX).await? {
            self.input.clear();
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resource {
    /// Nothing is checked.
    Live,
    Started,
    Ready,
    Status,
    Detail,
    Metrics,
}

impl Resource {
    /// Paths of this server, or of Infinispan 16, where one container has all caches; before 16 it had a name.
    fn at(path: &str) -> Option<Self> {
        let container = path.strip_prefix("/rest/v2/container");
        let in_container = container.or_else(|| {
            let rest = path.strip_prefix("/rest/v2/cache-managers/")?;
            rest.find('/').map(|at| &rest[at..])
        });
        match (in_container, path) {
            (Some("/health/status"), _) | (None, "/health") => Some(Self::Status),
            (Some("/health"), _) => Some(Self::Detail),
            (None, "/health/live") => Some(Self::Live),
            (None, "/health/started") => Some(Self::Started),
            (None, "/health/ready") => Some(Self::Ready),
            (None, "/metrics") => Some(Self::Metrics),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_server_and_of_infinispan_are_known() {
        for (path, resource) in [
            ("/health", Some(Resource::Status)),
            ("/rest/v2/container/health/status", Some(Resource::Status)),
            ("/rest/v2/cache-managers/default/health/status", Some(Resource::Status)),
            ("/rest/v2/cache-managers/a%20b/health", Some(Resource::Detail)),
            ("/rest/v2/container/health", Some(Resource::Detail)),
            ("/health/live", Some(Resource::Live)),
            ("/health/started", Some(Resource::Started)),
            ("/health/ready", Some(Resource::Ready)),
            ("/metrics", Some(Resource::Metrics)),
            ("/", None),
            ("/metrics/", None),
            ("/rest/v2/cache-managers/health", None),
            ("/rest/v2/containers/health", None),
            ("health", None),
        ] {
            assert_eq!(Resource::at(path), resource, "{path}");
        }
    }

    #[test]
    fn a_server_is_ready_while_caches_rebalance_and_not_while_they_are_restored() {
        for (health, code) in [
            (Health::Healthy, Code::Ok),
            (Health::Rebalancing, Code::Ok),
            (Health::Initializing, Code::Unavailable),
            // Clients are served with the available entries.
            (Health::Degraded, Code::Ok),
        ] {
            assert_eq!(readiness(health, 0), Reply::text(code, health.name()));
            assert_eq!(readiness(health, 1).code, Code::Unavailable, "{health:?}");
        }
    }

    #[test]
    fn hot_rod_and_tls_are_not_taken_for_http() {
        assert!(begins_with(b'G') && begins_with(b'H') && !begins_with(consort_hotrod::REQUEST_MAGIC));
        assert!(!begins_with(0x16), "a handshake of TLS");
    }
}
