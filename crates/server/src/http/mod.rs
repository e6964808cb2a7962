//! Health and metrics in HTTP, on the port of Hot Rod's clients.
//!
//! Health is for everybody, as in Infinispan: what watches a server has no password. Metrics and health in detail are for who
//! may see how things are, unless the server's owner has it otherwise.

mod credentials;
mod early;
mod exposition;
mod head;
mod health;
mod metrics;
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

use self::credentials::Shown;
use self::head::{Head, Method, Unreadable};
use self::health::Health;
use self::reply::{Code, JSON, Reply, TEXT};
use crate::bounds::{CREDENTIALS_BYTES_MAX, HTTP_IDLE_MAX, HTTP_LINGER_MAX, UNTAKEN_TIME_MAX};
use crate::caches::Caches;
use crate::gathering::{Held, Responses};
use crate::security::authenticator::{Origin, Step};
use crate::security::requirement::Requirement;
use crate::security::{Permission, Security};
use crate::shutdown::{Stage, closing};
use crate::stream::{Incoming, Outgoing};

/// Whether what begins with this byte is HTTP: methods are words in capitals, and requests of Hot Rod begin with 0xA0.
pub(crate) const fn begins_with(byte: u8) -> bool {
    byte.is_ascii_uppercase()
}

/// Everything that is read of a request, as a text, and its head's length.
pub(crate) fn read_whole(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let Some((head, length)) = Head::read(bytes).map_err(|unreadable| unreadable.to_string())? else {
        return Ok(None);
    };
    let shown = head.authorization.as_deref().map(credentials::shown);
    let resource = Resource::at(&head.path);
    Ok(Some((format!("{head:?} {shown:?} {resource:?}"), length)))
}

/// What a client that speaks HTTP is told where only TLS is spoken.
pub(crate) fn only_tls() -> bytes::Bytes {
    Reply::text(Code::BadRequest, "this server speaks TLS only: ask with https://").into_bytes(true, true)
}

fn unreadable(wrong: Unreadable) -> Reply {
    let code = match wrong {
        Unreadable::Malformed(_) | Unreadable::NoHost | Unreadable::Ambiguous(_) => Code::BadRequest,
        Unreadable::TooLarge => Code::HeadTooLarge,
        Unreadable::Version => Code::OtherVersion,
    };
    Reply::text(code, wrong)
}

fn unknown() -> Reply {
    Reply::text(
        Code::NotFound,
        "there are /health, /health/live, /health/ready, /health/started and /metrics",
    )
}

fn only_read() -> Reply {
    Reply::text(Code::MethodNotAllowed, "this can only be read").with("Allow", "GET, HEAD")
}

/// Whether a server that serves is ready, by the health of its caches and the number of those that it could not open.
fn ready(health: Health, failed: usize) -> Reply {
    match health {
        health if failed > 0 => {
            let text = format!(
                "{}: {failed} defined caches could not be opened on this server; the log and /rest/v2/container/health name \
                 them",
                health.name(),
            );
            Reply::text(Code::Unavailable, text)
        }
        Health::Initializing => Reply::text(Code::Unavailable, Health::Initializing.name()),
        health => Reply::text(Code::Ok, health.name()),
    }
}

/// Bytes of a reply with metrics or health in detail while it is made and written, without caches, and for each cache.
const REPLY_BYTES: usize = 48 * 1024;
const REPLY_BYTES_OF_CACHE: usize = 16 * 1024;

/// How long metrics wait for the stack of protocols. A stack that is busy for longer is left out.
const STACK_ASKED_WITHIN: Duration = Duration::from_secs(1);

/// What the layers of the stack count; nothing if the stack does not answer in time.
async fn stack_counts(caches: &Caches) -> Vec<metrics::OfStack> {
    let counts = timeout(STACK_ASKED_WITHIN, caches.manager().stack_counts()).await;
    counts.ok().flatten().unwrap_or_default()
}

/// A client that speaks HTTP.
pub(crate) struct Visitor<'a> {
    /// Nothing before the server serves.
    pub(crate) caches: Option<&'a Caches>,
    pub(crate) security: &'a Security,
    pub(crate) peer: Option<SocketAddr>,
    /// The name in the certificate that it has shown.
    pub(crate) certificate: Option<Arc<str>>,
    pub(crate) from: Incoming<'a>,
    pub(crate) to: Outgoing<'a>,
    /// What has come and was not looked at.
    pub(crate) input: BytesMut,
    /// It has shown who it is.
    pub(crate) is_known: bool,
    /// It has come by the port for health, where nobody can show who it is.
    pub(crate) is_health_port: bool,
}

impl Visitor<'_> {
    /// Answers until its client goes, has to go, or takes longer than it may.
    pub(crate) async fn serve(
        mut self,
        known_by: Instant,
        ending: &mut watch::Receiver<Stage>,
    ) -> io::Result<()> {
        let mut until = known_by;
        loop {
            let visited = tokio::select! {
                visited = timeout_at(until, self.visit()) => visited,
                () = closing(ending) => return self.to.shutdown().await,
            };
            let Ok(Some((mut output, held, is_last))) = visited.unwrap_or(Ok(None)) else { return Ok(()) };
            let writing = async {
                while self.to.has_to_write(&output) {
                    self.to.write(&mut output).await?;
                }
                io::Result::Ok(())
            };
            timeout(UNTAKEN_TIME_MAX, writing).await.map_err(io::Error::from)??;
            drop((output, held));
            if is_last {
                self.to.shutdown().await?;
                // With something unread the connection would be reset, and the answer might not arrive.
                let _ = timeout(HTTP_LINGER_MAX, self.rest()).await;
                return Ok(());
            }
            // Strangers stay no longer for asking again.
            if self.is_known || self.security.authenticator.is_none() {
                until = Instant::now() + HTTP_IDLE_MAX;
            }
        }
    }

    /// Waits for the next request. Returns its answer, the bytes that are reserved for that, and whether it is the last one;
    /// nothing if none comes.
    async fn visit(&mut self) -> io::Result<Option<(bytes::Bytes, Option<Box<Held>>, bool)>> {
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
                Err(wrong) => return Ok(Some((unreadable(wrong).into_bytes(true, true), None, true))),
            }
        };
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        let (reply, held, is_last) = match self.caches {
            Some(caches) => {
                caches.telemetry.http_requests.one();
                let (reply, held) = self.answer(caches, &head).await;
                // Who guesses has to connect again for each guess.
                let is_guess = reply.code == Code::Unauthorized && head.authorization.is_some();
                (reply, held, head.is_last || is_guess)
            }
            // The next one may be told more.
            None => (early::reply(&head), None, true),
        };
        Ok(Some((reply.into_bytes(head.method != Method::Head, is_last), held, is_last)))
    }

    async fn answer(&mut self, caches: &Caches, head: &Head) -> (Reply, Option<Box<Held>>) {
        let Some(resource) = Resource::at(&head.path) else { return (unknown(), None) };
        if head.method == Method::Other {
            return (only_read(), None);
        }
        let is_open = match resource {
            Resource::Live | Resource::Started | Resource::Ready | Resource::Status => true,
            Resource::Detail => false,
            Resource::Metrics => self.security.metrics_are_open,
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
            // A server that serves has started.
            Resource::Live | Resource::Started => Reply::text(Code::Ok, "live"),
            Resource::Ready if self.security.requirement.refuses() => {
                Reply::text(Code::Unavailable, Requirement::REFUSAL)
            }
            Resource::Ready => ready(Health::of_caches(caches), caches.failed.len()),
            Resource::Status => {
                let reply = Reply::new(Code::Ok, TEXT, Health::of_all(caches).name());
                match health::memory_in_short(caches) {
                    Some(memory) => reply.with("Consort-Memory", memory),
                    None => reply,
                }
            }
            Resource::Detail => Reply::new(Code::Ok, JSON, health::in_detail(caches)),
            Resource::Metrics => {
                let (counters, stack) = tokio::join!(caches.counters.defined(), stack_counts(caches));
                let (content_type, told) =
                    metrics::told(caches, self.security, counters, &stack, &head.accept);
                Reply::new(Code::Ok, content_type, told)
            }
        };
        (reply, held)
    }

    /// Whether its client may see how things are, or else what it is told.
    async fn permit(&mut self, caches: &Caches, head: &Head) -> Result<(), Reply> {
        let Some(authenticator) = &self.security.authenticator else {
            let refuses = self.security.requirement.refuses();
            return if refuses { Err(Reply::text(Code::Forbidden, Requirement::REFUSAL)) } else { Ok(()) };
        };
        if self.is_health_port {
            let text = "this port answers requests for health only: ask on the port of clients";
            return Err(Reply::text(Code::Forbidden, text));
        }
        let offered = authenticator.mechanisms();
        let unauthorized = |text: &str| match credentials::challenge(&offered) {
            Some(schemes) => Reply::text(Code::Unauthorized, text).with("WWW-Authenticate", schemes),
            None => Reply::text(
                Code::Forbidden,
                "a user has to ask for this, and passwords and tokens are not taken here: that needs TLS",
            ),
        };
        let shown = match (&head.authorization, &self.certificate) {
            (Some(authorization), _) => credentials::shown(authorization),
            (None, Some(_)) if offered.contains(&Mechanism::External) => {
                Some(Shown { mechanism: Mechanism::External, message: Vec::new() })
            }
            (None, _) => None,
        };
        let Some(Shown { mechanism, message }) = shown else {
            return Err(unauthorized("who asks for this has to say who it is"));
        };
        let origin = Origin { peer: self.peer, certificate: self.certificate.as_deref() };
        match authenticator.step(&mut None, mechanism.name(), &message, origin).await {
            Ok(Step::Admitted(user, _)) if user.permissions.contain(Permission::Monitor) => {
                self.is_known = true;
                Ok(())
            }
            Ok(Step::Admitted(user, _)) => {
                let text = format!(
                    "ISPN000287: Unauthorized access: user '{}' lacks 'MONITOR' permission",
                    user.name
                );
                Err(Reply::text(Code::Forbidden, text))
            }
            Ok(Step::Challenge(_)) => Err(unauthorized("this cannot be shown in HTTP")),
            Err(rejection) => {
                caches.telemetry.rejections.one();
                authenticator.note(&rejection, self.peer);
                Err(unauthorized(&rejection.to_string()))
            }
        }
    }

    /// What its client still sends, which nobody reads.
    async fn rest(&mut self) -> io::Result<()> {
        while self.from.take(&mut self.input, CREDENTIALS_BYTES_MAX).await? {
            self.input.clear();
        }
        Ok(())
    }
}

/// What there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resource {
    /// That the process answers; nothing is looked at.
    Live,
    /// That it serves clients.
    Started,
    /// Whether clients are well served here.
    Ready,
    /// How the cluster is, in a word.
    Status,
    /// The same with members and caches.
    Detail,
    Metrics,
}

impl Resource {
    /// By our paths and by those of Infinispan 16, where all caches are in a container, which had a name before.
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
    fn paths_are_ours_and_those_of_infinispan() {
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
            // Clients are served with what can be used.
            (Health::Degraded, Code::Ok),
        ] {
            assert_eq!(ready(health, 0), Reply::text(code, health.name()));
            assert_eq!(ready(health, 1).code, Code::Unavailable, "{health:?}");
        }
    }

    #[test]
    fn hot_rod_is_not_taken_for_http() {
        assert!(begins_with(b'G') && begins_with(b'H') && !begins_with(consort_hotrod::REQUEST_MAGIC));
        assert!(!begins_with(0x16), "a handshake of TLS");
    }
}
