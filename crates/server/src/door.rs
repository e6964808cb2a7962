//! The door: whoever comes is met here, also before the server serves, which may have to wait for others of its cluster.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::bounds::{ACCEPT_AGAIN_AFTER, ACCEPTED_AT_ONCE, CONNECTIONS_MAX, DRAIN_TIME_MAX};
use crate::caches::Caches;
use crate::connection::{self, Arrival};
use crate::security::Security;
use crate::strangers::{Serving, Strangers};
use crate::telemetry::{Tally, Telemetry};

/// Where clients come in, and those that are here.
pub(crate) struct Door {
    listener: TcpListener,
    security: Arc<Security>,
    telemetry: Arc<Telemetry>,
    strangers: Strangers,
    connections: JoinSet<()>,
    /// There as soon as the server serves.
    caches: watch::Sender<Option<Arc<Caches>>>,
    is_ending: watch::Sender<bool>,
}

impl Door {
    pub(crate) fn new(
        listener: TcpListener,
        security: Arc<Security>,
        telemetry: Arc<Telemetry>,
        strangers: Strangers,
    ) -> Self {
        let (caches, is_ending) = (watch::Sender::new(None), watch::Sender::new(false));
        Self { listener, security, telemetry, strangers, connections: JoinSet::new(), caches, is_ending }
    }

    /// From now on clients are served, those that wait first.
    pub(crate) fn open(&self, caches: Arc<Caches>) {
        self.caches.send_replace(Some(caches));
    }

    /// Takes in whoever comes, until this is dropped.
    pub(crate) async fn attend(&mut self) -> Infallible {
        let mut turn: usize = 0;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) if self.connections.len() + self.strangers.len() < CONNECTIONS_MAX => {
                        self.meet(stream);
                    }
                    Ok(_) => {
                        self.telemetry.turned_away.one();
                        tracing::warn!("a client is turned away: there are {CONNECTIONS_MAX} connections");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a client cannot be accepted");
                        // Out of descriptors, as a rule: that passes as others go.
                        sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                },
                Some(serving) = self.strangers.next() => go_on(&mut self.connections, serving),
                Some(_) = self.connections.join_next() => {}
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(ACCEPTED_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
    }

    fn meet(&mut self, stream: TcpStream) {
        // Answers are written together as they are; waiting for more of them would only cost time.
        let _ = stream.set_nodelay(true);
        let tally = Tally::of_next(&self.telemetry);
        let (security, caches) = (self.security.clone(), self.caches.subscribe());
        let ending = self.is_ending.subscribe();
        self.strangers.meet(|threshold| {
            let arrival = Arrival { stream, tally, security, caches, threshold };
            Box::pin(connection::serve(arrival, ending))
        });
    }

    /// Takes in nobody more, and waits until what was asked is answered, but not for clients that do not take it.
    pub(crate) async fn close(self) {
        let Self { listener, mut strangers, mut connections, is_ending, .. } = self;
        drop(listener);
        is_ending.send_replace(true);
        let drained = async {
            loop {
                tokio::select! {
                    Some(serving) = strangers.next() => go_on(&mut connections, serving),
                    Some(_) = connections.join_next() => {}
                    else => break,
                }
            }
        };
        if timeout(DRAIN_TIME_MAX, drained).await.is_err() {
            tracing::warn!("{} clients have not taken their answers", connections.len());
        }
        strangers.shutdown().await;
        connections.shutdown().await;
    }
}

/// Goes on with a connection whose client is known, if there is one.
fn go_on(connections: &mut JoinSet<()>, serving: Option<Serving>) {
    if let Some(serving) = serving {
        connections.spawn(serving);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bytes::BytesMut;
    use consort_cache::{CacheManager, Channel};
    use consort_conf::{Variables, parse_stack};
    use consort_hotrod::{
        Output, ProtocolVersion, Request, RequestBody, RequestHeader, ServerAddress, Status, ops,
    };
    use consort_tls::{ClientCertificates, Identity, Roots};
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::memory::Memory;
    use crate::security::Settings;
    use crate::security::tls::TlsSettings;

    const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
        <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

    trait Both: AsyncRead + AsyncWrite + Unpin {}
    impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

    /// Who comes: within TLS if the server has it.
    struct Visitors {
        at: SocketAddr,
        roots: Option<Roots>,
    }

    impl Visitors {
        async fn connect(&self) -> Box<dyn Both> {
            let stream = TcpStream::connect(self.at).await.unwrap();
            let Some(roots) = &self.roots else { return Box::new(stream) };
            let connector = TlsConnector::from(consort_tls::client(roots.clone(), None).unwrap());
            Box::new(connector.connect("localhost".try_into().unwrap(), stream).await.unwrap())
        }

        async fn ask(&self, method: &str, path: &str) -> String {
            let mut stream = self.connect().await;
            let request = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        }
    }

    async fn caches(cluster: &str, telemetry: Arc<Telemetry>) -> Caches {
        let stack = parse_stack("door", STACK, &Variables::new()).unwrap();
        let members = CacheManager::from_channel(Channel::from_config(stack.config));
        let manager = members.connect(cluster).await.unwrap();
        let endpoint = ServerAddress { host: "localhost".into(), port: 1 };
        Caches::open(manager, endpoint, None, telemetry, Memory::default()).await.unwrap()
    }

    /// Who watches a server that does not serve yet is answered; a client that has asked is answered once it serves.
    async fn early(name: &str, tls: Option<(TlsSettings, Roots)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (tls, roots) = tls.unzip();
        let security = Arc::new(Security::new(Settings { tls, ..Settings::default() }).unwrap());
        let telemetry = Arc::new(Telemetry::default());
        let visitors = Visitors { at, roots };
        let mut door = Door::new(listener, security, telemetry.clone(), Strangers::new().unwrap());
        let coming = async {
            let silent = visitors.connect().await;
            drop(visitors.connect().await);
            let mut client = visitors.connect().await;
            let header = RequestHeader::new(7, ProtocolVersion::V4_0);
            let mut ping = Output::new();
            Request { header, body: RequestBody::Server(ops::server::Request::Ping) }.encode(&mut ping);
            client.write_all(&ping.into_bytes()).await.unwrap();
            for (path, code) in [
                ("/health/live", "200 OK"),
                ("/health/ready", "503 Service Unavailable"),
                ("/health/started", "503 Service Unavailable"),
                ("/rest/v2/container/health/status", "200 OK"),
                ("/metrics", "503 Service Unavailable"),
                ("/nothing", "404 Not Found"),
            ] {
                let answer = visitors.ask("GET", path).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{path}: {answer}");
            }
            assert!(visitors.ask("GET", "/health").await.ends_with("\r\n\r\nINITIALIZING"));
            let head = visitors.ask("HEAD", "/health").await;
            assert!(head.ends_with("\r\n\r\n"), "its content was not asked for: {head}");
            assert!(visitors.ask("POST", "/health").await.starts_with("HTTP/1.1 405 "));
            let wrong = visitors.ask("GET", "no path").await;
            assert!(wrong.starts_with("HTTP/1.1 505 "), "{wrong}");
            (client, silent)
        };
        let (mut client, _silent) = tokio::select! {
            clients = coming => clients,
            never = door.attend() => match never {},
        };
        door.open(Arc::new(caches(name, telemetry).await));
        let served = async {
            let mut answer = BytesMut::new();
            while answer.len() < 4 {
                assert!(client.read_buf(&mut answer).await.unwrap() > 0, "it is gone");
            }
            // Magic, id, opcode and status.
            assert_eq!((answer[0], answer[1], answer[3]), (0xa1, 7, Status::Success.byte()), "{answer:?}");
            visitors.ask("GET", "/health/ready").await
        };
        let ready = tokio::select! {
            ready = served => ready,
            never = door.attend() => match never {},
        };
        assert!(ready.starts_with("HTTP/1.1 200 OK\r\n"), "{ready}");
    }

    #[tokio::test]
    async fn before_it_is_open_who_watches_is_answered_and_clients_wait_with_what_they_have_said() {
        early("early", None).await;
    }

    #[tokio::test]
    async fn within_tls_it_is_the_same() {
        let directory = std::env::temp_dir().join(format!("consort-{}-door", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let (identity, roots) = (Identity::from_files(&cert, &key), Roots::from_file(&cert));
        std::fs::remove_dir_all(&directory).unwrap();
        let tls = TlsSettings { identity: identity.unwrap(), clients: ClientCertificates::NotAsked };
        early("early within TLS", Some((tls, roots.unwrap()))).await;
    }
}
