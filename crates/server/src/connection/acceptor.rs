//! The acceptor. It accepts connections as soon as the port is bound. Until the server serves, which may have to wait for other
//! servers, readiness probes get 503 and Hot Rod requests wait.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::catalog::caches::Caches;
use crate::connection::handshake_pool::{HandshakePool, Serving};
use crate::connection::{self, AcceptedConnection, descriptors};
use crate::http::health_port::HealthPort;
use crate::http::not_ready::NotServing;
use crate::limits::{
    ACCEPT_BATCH_MAX, ACCEPT_RETRY_DELAY, CONNECTIONS_RESERVED, DRAIN_TIME_MAX, KEEPALIVE_AFTER,
    KEEPALIVE_ATTEMPTS, KEEPALIVE_INTERVAL, MOVE_TIME_MAX,
};
use crate::metrics::telemetry::{Tally, Telemetry};
use crate::security::Security;
use crate::security::rate_limited_log::RateLimitedLog;
use crate::shutdown::Stage;
use crate::transport::addresses::{Addresses, Origin};

/// A port for clients. The limits of connections apply to all ports together.
pub(crate) struct Port {
    pub(crate) listener: TcpListener,
    pub(crate) addresses: Addresses,
}

pub(crate) struct Acceptor {
    /// The first one is that of the topology.
    ports: Vec<Port>,
    health: Option<HealthPort>,
    security: Arc<Security>,
    telemetry: Arc<Telemetry>,
    handshake_pool: HandshakePool,
    connections: JoinSet<()>,
    connections_max: usize,
    /// Set as soon as the server serves.
    caches: watch::Sender<Option<Arc<Caches>>>,
    stage: watch::Sender<Stage>,
    /// Out of descriptors until then.
    paused_until: Option<Instant>,
    log_limits: LogLimits,
}

#[derive(Default)]
struct LogLimits {
    full: RateLimitedLog,
    addresses: RateLimitedLog,
    rejected: RateLimitedLog,
    pending: RateLimitedLog,
    accepting: RateLimitedLog,
}

impl Acceptor {
    pub(crate) fn new(
        ports: Vec<Port>,
        health: Option<TcpListener>,
        security: Arc<Security>,
        telemetry: Arc<Telemetry>,
        handshake_pool: HandshakePool,
    ) -> Self {
        let (caches, stage) = (watch::Sender::new(None), watch::Sender::new(Stage::Serving));
        Self {
            ports,
            health: health.map(HealthPort::new),
            security,
            telemetry,
            handshake_pool,
            connections: JoinSet::new(),
            connections_max: descriptors::connections_max(),
            caches,
            stage,
            paused_until: None,
            log_limits: LogLimits::default(),
        }
    }

    /// Serves clients that already wait first.
    pub(crate) fn start_serving(&self, caches: Arc<Caches>) {
        self.caches.send_replace(Some(caches));
    }

    pub(crate) async fn run(&mut self) -> Infallible {
        let mut turn: usize = 0;
        loop {
            let paused_until = self.paused_until;
            let full_until = self.full_until();
            tokio::select! {
                (port, accepted) = accept_any(&self.ports, turn), if paused_until.is_none() && full_until.is_none() => match accepted {
                    Ok((stream, peer)) => self.accept(stream, peer, port),
                    Err(error) => self.pause(&error),
                },
                accepted = HealthPort::accept(self.health.as_ref()), if paused_until.is_none() => match accepted {
                    Ok(stream) => {
                        if let Some(port) = &mut self.health {
                            let caches = self.caches.borrow().clone().ok_or(NotServing::Starting);
                            port.serve(stream, &self.security, caches, &self.stage);
                        }
                    }
                    Err(error) => self.pause(&error),
                },
                () = sleep_until(paused_until.unwrap_or_else(Instant::now)), if paused_until.is_some() => {
                    self.paused_until = None;
                }
                // Then the oldest connection without an authenticated client is closed.
                () = sleep_until(full_until.unwrap_or_else(Instant::now)), if full_until.is_some() => {}
                Some(serving) = self.handshake_pool.join_next() => self.resume(serving),
                Some(_) = self.connections.join_next() => {}
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(ACCEPT_BATCH_MAX) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Until then there is no capacity, and all connections without an authenticated client are new.
    fn full_until(&self) -> Option<Instant> {
        let is_full = self.connections.len() + self.handshake_pool.len() >= self.connections_max;
        let until =
            if is_full { self.handshake_pool.oldest_closable_at() } else { self.handshake_pool.full_until() };
        until.filter(|until| *until > Instant::now())
    }

    /// Usually for lack of descriptors, which closed connections free.
    fn pause(&mut self, error: &io::Error) {
        self.paused_until = Some(Instant::now() + ACCEPT_RETRY_DELAY);
        if let Some(count) = self.log_limits.accepting.count(std::time::Instant::now()) {
            tracing::warn!(%error, count, "cannot accept connections");
        }
    }

    /// At the total limit, this closes the oldest connection without an authenticated client.
    fn accept(&mut self, stream: TcpStream, peer: SocketAddr, port: usize) {
        let origin = Origin::of(peer.ip());
        let addresses = &self.ports[port].addresses;
        if !addresses.accept(peer.ip()) {
            self.telemetry.turned_away.one();
            if let Some(count) = self.log_limits.rejected.count(std::time::Instant::now()) {
                tracing::warn!(%origin, count, "refusing connections: the ip-filter rejects the address");
            }
            return;
        }
        let Some(counted) = addresses.add(origin) else {
            self.telemetry.turned_away.one();
            if let Some(count) = self.log_limits.addresses.count(std::time::Instant::now()) {
                let max = addresses.max();
                tracing::warn!(
                    %origin, count,
                    "refusing connections: the address has reached the limit of {max} (--connections-per-address)"
                );
            }
            return;
        };
        while self.connections.len() + self.handshake_pool.len() >= self.connections_max {
            let ended = self.handshake_pool.close_oldest();
            self.note_ended(ended);
            if ended.is_none() {
                return self.note_full();
            }
        }
        set_options(&stream);
        let tally = Tally::of_next(&self.telemetry);
        let (security, caches) = (self.security.clone(), self.caches.subscribe());
        let stage = self.stage.subscribe();
        let ended = self.handshake_pool.spawn(origin, |gate| {
            let arrival =
                AcceptedConnection { stream, tally, security, caches, gate, hides_topology: port > 0 };
            Box::pin(async move {
                let _counted = counted;
                connection::serve(arrival, stage).await;
            })
        });
        self.note_ended(ended);
    }

    fn note_ended(&self, ended: impl IntoIterator<Item = Origin>) {
        for origin in ended {
            self.telemetry.turned_away.one();
            if let Some(count) = self.log_limits.pending.count(std::time::Instant::now()) {
                tracing::warn!(
                    %origin, count,
                    "closing unauthenticated connections: their limit is reached"
                );
            }
        }
    }

    fn note_full(&self) {
        self.telemetry.turned_away.one();
        if let Some(count) = self.log_limits.full.count(std::time::Instant::now()) {
            let max = self.connections_max;
            tracing::warn!(count, "refusing connections: the limit of {max} is reached");
        }
    }

    fn resume(&mut self, serving: Option<Serving>) {
        let Some(serving) = serving else { return };
        let reserved = CONNECTIONS_RESERVED.min(self.connections_max / 4);
        if self.connections.len() + reserved < self.connections_max {
            self.connections.spawn(serving);
        } else {
            self.note_full();
        }
    }

    /// Serves no more connections. If there are other servers, executes requests until the clients have moved. Then waits until
    /// all requests are answered, but not for clients that do not read their responses. The ports are closed at once, unless they
    /// are kept.
    pub(crate) async fn drain(self, has_others: bool, kept: Option<&mut KeptPorts>) {
        let Self { ports, health, security, mut handshake_pool, mut connections, stage, .. } = self;
        match kept {
            Some(kept) => {
                for port in ports {
                    kept.clients.spawn(close_new_connections(port.listener));
                }
                if let Some(port) = health {
                    kept.health.spawn(port.answer_as_stopped(security));
                }
            }
            None => drop((ports, health)),
        }
        if has_others {
            stage.send_replace(Stage::Draining);
            let _ = timeout(MOVE_TIME_MAX, wait_until_moved(&mut handshake_pool, &mut connections)).await;
        }
        stage.send_replace(Stage::Closing);
        if timeout(DRAIN_TIME_MAX, wait_until_drained(&mut handshake_pool, &mut connections)).await.is_err() {
            tracing::warn!("{} clients have not read their responses", connections.len());
        }
        handshake_pool.shutdown().await;
        connections.shutdown().await;
    }
}

/// The ports of a server that stops with its cluster. They are closed with these tasks.
#[derive(Default)]
pub(crate) struct KeptPorts {
    /// Each new connection is closed. A port that accepts none says that the server has left.
    pub(crate) clients: JoinSet<Infallible>,
    /// The server is alive, and not ready.
    pub(crate) health: JoinSet<Infallible>,
}

/// Each turn begins with the next port, so that a constant supply of connections to one does not exclude the others.
async fn accept_any(ports: &[Port], turn: usize) -> (usize, io::Result<(TcpStream, SocketAddr)>) {
    poll_fn(|cx| {
        for at in (0..ports.len()).map(|offset| turn.wrapping_add(offset) % ports.len()) {
            if let Poll::Ready(accepted) = ports[at].listener.poll_accept(cx) {
                return Poll::Ready((at, accepted));
            }
        }
        Poll::Pending
    })
    .await
}

async fn close_new_connections(listener: TcpListener) -> Infallible {
    loop {
        if listener.accept().await.is_err() {
            // Usually for lack of descriptors.
            sleep(ACCEPT_RETRY_DELAY).await;
        }
    }
}

fn set_options(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_ATTEMPTS);
    // Responses are already written in batches, so that Nagle's algorithm would only add delay.
    let results = [stream.set_nodelay(true), SockRef::from(stream).set_tcp_keepalive(&keepalive)];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "cannot set an option of a connection");
    }
}

/// Ignores connections without an authenticated client.
async fn wait_until_moved(handshake_pool: &mut HandshakePool, connections: &mut JoinSet<()>) {
    while !connections.is_empty() {
        tokio::select! {
            Some(serving) = handshake_pool.join_next() => {
                if let Some(serving) = serving {
                    connections.spawn(serving);
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn wait_until_drained(handshake_pool: &mut HandshakePool, connections: &mut JoinSet<()>) {
    loop {
        tokio::select! {
            Some(serving) = handshake_pool.join_next() => {
                if let Some(serving) = serving {
                    connections.spawn(serving);
                }
            }
            Some(_) = connections.join_next() => {}
            else => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use consort_hotrod::{Output, ProtocolVersion, Request, RequestBody, RequestHeader, Status, ops};
    use consort_tls::{ClientCertificates, Identity, Roots};
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::memory::Memory;
    use crate::security::SecuritySettings;
    use crate::security::tls::TlsSettings;
    use crate::single_member::caches;
    use crate::transport::ip_filter::IpFilter;

    trait Both: AsyncRead + AsyncWrite + Unpin {}
    impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

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

    fn ping() -> bytes::Bytes {
        let header = RequestHeader::new(7, ProtocolVersion::V4_0);
        let mut ping = Output::new();
        Request { header, body: RequestBody::Server(ops::server::Request::Ping) }.encode(&mut ping);
        ping.into_bytes()
    }

    fn open_port(listener: TcpListener) -> Port {
        Port { listener, addresses: Addresses::new(0) }
    }

    async fn limited_acceptor(connections_max: usize) -> (Acceptor, [Visitors; 2]) {
        let [clients, health] =
            [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let [clients, health] = [clients.unwrap(), health.unwrap()];
        let visitors = [&clients, &health].map(|at| Visitors { at: at.local_addr().unwrap(), roots: None });
        let security = Arc::new(Security::new(SecuritySettings::default()).unwrap());
        let (telemetry, handshake_pool) =
            (Arc::new(Telemetry::default()), HandshakePool::new(Memory::default().handshakes).unwrap());
        let mut acceptor =
            Acceptor::new(vec![open_port(clients)], Some(health), security, telemetry, handshake_pool);
        acceptor.connections_max = connections_max;
        acceptor.handshake_pool.age_min = std::time::Duration::ZERO;
        (acceptor, visitors)
    }

    #[tokio::test]
    async fn port_is_closed_at_once_or_kept_without_service() {
        for is_kept in [false, true] {
            let (acceptor, [clients, health]) = limited_acceptor(8).await;
            let mut kept = KeptPorts::default();
            acceptor.drain(false, is_kept.then_some(&mut kept)).await;
            match TcpStream::connect(clients.at).await {
                Ok(mut stream) => {
                    assert!(is_kept);
                    // Closed, or reset.
                    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or_default(), 0);
                }
                Err(_) => assert!(!is_kept),
            }
            kept.clients.shutdown().await;
            assert!(TcpStream::connect(clients.at).await.is_err());
            assert_eq!(TcpStream::connect(health.at).await.is_ok(), is_kept);
            if is_kept {
                for (path, code, text) in [
                    ("/health", "200 OK", "STOPPED"),
                    ("/health/live", "200 OK", "live"),
                    ("/health/ready", "503 Service Unavailable", "STOPPED"),
                    ("/health/started", "503 Service Unavailable", "waits for SIGTERM"),
                ] {
                    let answer = health.ask("GET", path).await;
                    assert!(answer.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{path}: {answer}");
                    assert!(answer.trim_end().ends_with(text), "{path}: {answer}");
                }
            }
            kept.health.shutdown().await;
            assert!(TcpStream::connect(health.at).await.is_err());
        }
    }

    #[tokio::test]
    async fn health_is_answered_while_silent_connections_reach_the_limit() {
        let (mut acceptor, visitors) = limited_acceptor(8).await;
        let watching = async {
            let mut silent = Vec::new();
            for visitors in &visitors {
                for _ in 0..2 * crate::limits::HEALTH_CONNECTIONS_MAX {
                    silent.push(visitors.connect().await);
                }
                for _ in 0..3 {
                    let answer = visitors.ask("GET", "/health/live").await;
                    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                }
            }
            silent
        };
        let _silent = tokio::select! {
            silent = watching => silent,
            never = acceptor.run() => match never {},
        };
        assert!(acceptor.handshake_pool.len() <= 8, "{} pending connections", acceptor.handshake_pool.len());
    }

    #[tokio::test]
    async fn authenticated_clients_beyond_the_limit_are_refused_and_health_is_answered() {
        const MAX: usize = 8;
        let (mut acceptor, [visitors, _]) = limited_acceptor(MAX).await;
        acceptor.start_serving(Arc::new(caches("narrow", acceptor.telemetry.clone()).await));
        let watching = async {
            let (mut clients, mut served) = (Vec::new(), 0);
            for _ in 0..2 * MAX {
                let mut client = visitors.connect().await;
                client.write_all(&ping()).await.unwrap();
                let mut answer = BytesMut::new();
                // A client that is turned away reads the end of the stream.
                if client.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {
                    served += 1;
                }
                clients.push(client);
            }
            let answer = visitors.ask("GET", "/health/ready").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            (clients, served)
        };
        let (_clients, served) = tokio::select! {
            watched = watching => watched,
            never = acceptor.run() => match never {},
        };
        assert_eq!(served, MAX - MAX / 4);
        assert_eq!(acceptor.telemetry.turned_away.get(), (MAX + MAX / 4) as i64);
    }

    #[tokio::test]
    async fn further_port_serves_with_a_filter_of_its_own() {
        let (mut acceptor, [first, _]) = limited_acceptor(8).await;
        let addresses = Addresses::new(0);
        let mut filter = IpFilter::default();
        filter.add(false, "127.0.0.0/8").unwrap();
        let mut further = Vec::new();
        for addresses in [addresses.clone(), addresses.filtered(filter)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            further.push(Visitors { at: listener.local_addr().unwrap(), roots: None });
            acceptor.ports.push(Port { listener, addresses });
        }
        acceptor.start_serving(Arc::new(caches("further", acceptor.telemetry.clone()).await));
        let is_answered = async |visitors: &Visitors| {
            let mut client = visitors.connect().await;
            client.write_all(&ping()).await.unwrap();
            client.read_buf(&mut BytesMut::new()).await.is_ok_and(|count| count > 0)
        };
        let watching = async {
            [is_answered(&first).await, is_answered(&further[0]).await, is_answered(&further[1]).await]
        };
        let answered = tokio::select! {
            answered = watching => answered,
            never = acceptor.run() => match never {},
        };
        assert_eq!(answered, [true, true, false]);
        assert_eq!(acceptor.telemetry.turned_away.get(), 1);
    }

    async fn early(name: &str, tls: Option<(TlsSettings, Roots)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (tls, roots) = tls.unzip();
        let security =
            Arc::new(Security::new(SecuritySettings { tls, ..SecuritySettings::default() }).unwrap());
        let telemetry = Arc::new(Telemetry::default());
        let visitors = Visitors { at, roots };
        let handshake_pool = HandshakePool::new(Memory::default().handshakes).unwrap();
        let ports = vec![open_port(listener)];
        let mut acceptor = Acceptor::new(ports, None, security, telemetry.clone(), handshake_pool);
        let coming = async {
            let silent = visitors.connect().await;
            drop(visitors.connect().await);
            let mut client = visitors.connect().await;
            client.write_all(&ping()).await.unwrap();
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
            never = acceptor.run() => match never {},
        };
        acceptor.start_serving(Arc::new(caches(name, telemetry).await));
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
            never = acceptor.run() => match never {},
        };
        assert!(ready.starts_with("HTTP/1.1 200 OK\r\n"), "{ready}");
    }

    #[tokio::test]
    async fn vanished_client_is_detected_by_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (_client, accepted) = tokio::join!(connecting, listener.accept());
        let stream = accepted.unwrap().0;
        set_options(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_ATTEMPTS);
    }

    #[tokio::test]
    async fn http_is_answered_and_hot_rod_requests_wait_before_the_server_serves() {
        early("early", None).await;
    }

    #[tokio::test]
    async fn http_is_answered_and_hot_rod_requests_wait_before_the_server_serves_tls() {
        let directory = std::env::temp_dir().join(format!("consort-{}-acceptor", std::process::id()));
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
