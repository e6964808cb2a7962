//! The router on a socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::connection;
use crate::routes::Client;
use crate::shared::{Admitted, Bounds, Shared};
use crate::tls::RouterTls;

/// Connections to accept: all members may reconnect at once.
const CONNECTING_MAX: u32 = 4_096;

/// Usually no descriptor was free.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Clients read their queues within this time at the close.
const CLOSE_TIME: Duration = Duration::from_millis(500);

/// A router's settings.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// The host to listen at; 0.0.0.0 or :: for all. By default loopback, because any client can register.
    pub host: String,
    /// The port: JGroups' default, or 0 for any.
    pub port: u16,
    /// Whether members suspect one whose connection ends, as with JGroups' routers (TUNNEL).
    pub notify_ends: bool,
    /// A client that has not read for this time loses frames that do not fit; before, its senders are slowed down.
    /// The default of 5 s is longer than a member's long pause, and shorter than a failure detection timeout.
    pub stall_timeout: Duration,
    /// TLS of all connections; `None`: none.
    pub tls: Option<RouterTls>,
}

impl RouterConfig {
    /// The default port.
    pub const PORT: u16 = 12001;
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: Self::PORT,
            notify_ends: true,
            stall_timeout: Duration::from_secs(5),
            tls: None,
        }
    }
}

/// A running router. A drop does not notify its clients; [`Router::close`] does.
pub struct Router {
    local: SocketAddr,
    shared: Arc<Shared>,
    is_ending: watch::Sender<bool>,
    accept_task: JoinHandle<()>,
}

impl Router {
    /// Starts on the current runtime.
    ///
    /// # Errors
    ///
    /// If there is no address or no free port, or if certificate and key do not match.
    pub async fn start(config: &RouterConfig) -> io::Result<Self> {
        Self::start_within(config, Bounds::default()).await
    }

    async fn start_within(config: &RouterConfig, bounds: Bounds) -> io::Result<Self> {
        let tls = config.tls.as_ref().map(RouterTls::acceptor).transpose()?.map(Arc::new);
        let listener = consort_net::listen(&config.host, config.port, CONNECTING_MAX).await?;
        let local = listener.local_addr()?;
        let shared = Arc::new(Shared::new(config.notify_ends, config.stall_timeout, bounds));
        let is_ending = watch::Sender::new(false);
        let accept_task =
            tokio::spawn(accept_connections(listener, tls, shared.clone(), is_ending.subscribe()));
        Ok(Self { local, shared, is_ending, accept_task })
    }

    /// Returns the listening address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the number of registered members.
    pub fn member_count(&self) -> usize {
        self.shared.member_count()
    }

    /// Returns the frames dropped for recipients that did not read.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped()
    }

    /// Returns the bytes of incomplete frames.
    pub fn unfinished(&self) -> consort_memory::Usage {
        self.shared.unfinished.usage()
    }

    /// Stops accepting, notifies clients, and waits up to 500 ms (`CLOSE_TIME`) for their queues.
    pub async fn close(mut self) {
        self.shared.begin_end();
        self.is_ending.send_replace(true);
        let _ = (&mut self.accept_task).await;
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.shared.begin_end();
        self.accept_task.abort();
    }
}

async fn accept_connections(
    listener: TcpListener,
    tls: Option<Arc<TlsAcceptor>>,
    shared: Arc<Shared>,
    mut is_ending: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut next = 0;
    loop {
        tokio::select! {
            _ = is_ending.changed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) if connections.len() < shared.bounds.connections => {
                    let client = Client(next);
                    next += 1;
                    let (outgoing, must_end) = shared.admit(client, peer);
                    let admitted = Admitted { client, peer, shared: shared.clone() };
                    let (tls, is_ending) = (tls.clone(), is_ending.clone());
                    connections.spawn(async move {
                        let serving = connection::serve(stream, tls, &admitted, outgoing, is_ending);
                        tokio::select! {
                            () = serving => {}
                            () = must_end.notified() => {}
                        }
                    });
                }
                Ok((_, peer)) => {
                    let detail =
                        || format!("connection from {peer} refused: there are {} connections", shared.bounds.connections);
                    shared.warn("too_many_connections", detail);
                }
                Err(error) => {
                    shared.warn("accept_failed", || format!("a connection cannot be accepted: {error}"));
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIME, ended).await.is_err() {
        connections.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use consort_group::wire::{GossipData, GossipKind, encode_gossip};
    use consort_net::framing::put_frame;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn router(bounds: Bounds) -> Router {
        let config = RouterConfig { port: 0, ..RouterConfig::default() };
        Router::start_within(&config, bounds).await.expect("a port")
    }

    fn heartbeat() -> BytesMut {
        let mut bytes = BytesMut::new();
        put_frame(&mut bytes, &encode_gossip(&GossipData::new(GossipKind::Heartbeat, None)));
        bytes
    }

    /// A connection that does not answer is closed.
    async fn is_answered(client: &mut TcpStream) -> bool {
        let asked = client.write_all(&heartbeat()).await.is_ok();
        let mut answer = BytesMut::new();
        while asked && answer.len() < heartbeat().len() {
            if !client.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {
                return false;
            }
        }
        asked
    }

    #[tokio::test]
    async fn a_connection_beyond_the_bound_is_closed_and_its_place_is_free_again() {
        let router = router(Bounds { connections: 2, ..Bounds::default() }).await;
        let connect = || TcpStream::connect(router.local_addr());
        let [mut first, mut second] = [connect().await.unwrap(), connect().await.unwrap()];
        assert!(is_answered(&mut first).await && is_answered(&mut second).await);
        assert!(!is_answered(&mut connect().await.unwrap()).await);
        drop(first);
        // Until the router has seen the connection's end.
        while !is_answered(&mut connect().await.unwrap()).await {}
        assert!(is_answered(&mut second).await);
    }

    /// With one router, VERIFY_SUSPECT could not ask them.
    #[tokio::test]
    async fn members_of_a_router_that_ends_are_not_reported_as_failed() {
        let router = router(Bounds::default()).await;
        let mut clients = Vec::new();
        for n in 1..=2 {
            let mut client = TcpStream::connect(router.local_addr()).await.unwrap();
            let address = consort_group::Address::Uuid(consort_group::Uuid { most: 0, least: n });
            let data = GossipData::new(GossipKind::Register, Some("demo".into())).with_member(address);
            let mut bytes = BytesMut::new();
            put_frame(&mut bytes, &encode_gossip(&data));
            client.write_all(&bytes).await.unwrap();
            assert!(is_answered(&mut client).await);
            clients.push(client);
        }
        assert_eq!(router.member_count(), 2);
        router.close().await;
        for mut client in clients {
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest).await;
            assert!(rest.len() <= 4, "more than the close word: {rest:?}");
        }
    }

    #[tokio::test]
    async fn a_frame_that_takes_too_long_ends_its_connection_and_silence_does_not() {
        let router = router(Bounds { frame_time: Duration::from_millis(20), ..Bounds::default() }).await;
        let connect = || TcpStream::connect(router.local_addr());
        let [mut silent, mut slow] = [connect().await.unwrap(), connect().await.unwrap()];
        assert!(is_answered(&mut silent).await && is_answered(&mut slow).await);
        slow.write_all(&heartbeat()[..5]).await.unwrap();
        let mut rest = Vec::new();
        // The router's close word, or a reset.
        let _ = slow.read_to_end(&mut rest).await;
        assert!(rest.len() <= 4, "{rest:?}");
        assert!(is_answered(&mut silent).await);
    }

    fn registration(n: u64) -> BytesMut {
        let address = consort_group::Address::Uuid(consort_group::Uuid { most: 0, least: n });
        let data = GossipData::new(GossipKind::Register, Some("demo".into())).with_member(address);
        let mut bytes = BytesMut::new();
        put_frame(&mut bytes, &encode_gossip(&data));
        bytes
    }

    #[tokio::test]
    async fn connections_without_a_member_beyond_the_bound_end_the_oldest_and_members_stay() {
        let router = router(Bounds { unregistered: 2, ..Bounds::default() }).await;
        let connect = || TcpStream::connect(router.local_addr());
        let mut member = connect().await.unwrap();
        member.write_all(&registration(1)).await.unwrap();
        assert!(is_answered(&mut member).await);
        let mut strangers = Vec::new();
        for _ in 0..3 {
            let mut stranger = connect().await.unwrap();
            assert!(is_answered(&mut stranger).await);
            strangers.push(stranger);
        }
        assert!(!is_answered(&mut strangers[0]).await);
        assert!(is_answered(&mut strangers[1]).await && is_answered(&mut strangers[2]).await);
        assert!(is_answered(&mut member).await);
    }

    #[tokio::test]
    async fn a_connection_without_a_member_ends_after_its_silence() {
        let router = router(Bounds { silence: Duration::from_millis(20), ..Bounds::default() }).await;
        let connect = || TcpStream::connect(router.local_addr());
        let [mut member, mut stranger] = [connect().await.unwrap(), connect().await.unwrap()];
        member.write_all(&registration(1)).await.unwrap();
        assert!(is_answered(&mut member).await);
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest).await;
        assert!(rest.len() <= 4, "{rest:?}");
        assert!(is_answered(&mut member).await);
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_closed_and_its_bytes_are_free() {
        let bounds = Bounds { take_time: Duration::from_millis(20), ..Bounds::default() };
        let router = router(bounds).await;
        let mut unread = TcpStream::connect(router.local_addr()).await.unwrap();
        unread.write_all(&registration(1)).await.unwrap();
        assert!(is_answered(&mut unread).await);
        let mut other = TcpStream::connect(router.local_addr()).await.unwrap();
        other.write_all(&registration(2)).await.unwrap();
        assert!(is_answered(&mut other).await);
        assert_eq!(router.member_count(), 2);
        let to = consort_group::Address::Uuid(consort_group::Uuid { most: 0, least: 1 });
        let data = GossipData::new(GossipKind::Message, Some("demo".into())).with_member(to);
        let mut bytes = BytesMut::new();
        put_frame(&mut bytes, &encode_gossip(&GossipData { payload: vec![0; 60_000].into(), ..data }));
        while router.member_count() != 1 {
            other.write_all(&bytes).await.unwrap();
            tokio::task::yield_now().await;
        }
        while router.shared.waiting() != 0 {
            tokio::task::yield_now().await;
        }
        assert!(is_answered(&mut other).await);
    }

    #[tokio::test]
    async fn a_connection_that_ends_without_reading_is_not_kept() {
        let bounds = Bounds { connections: 1, drain_time: Duration::from_millis(20), ..Bounds::default() };
        let router = router(bounds).await;
        let mut ended = TcpStream::connect(router.local_addr()).await.unwrap();
        ended.write_all(&registration(1)).await.unwrap();
        let to = consort_group::Address::Uuid(consort_group::Uuid { most: 0, least: 1 });
        let data = GossipData::new(GossipKind::Message, Some("demo".into())).with_member(to);
        let mut bytes = BytesMut::new();
        put_frame(&mut bytes, &encode_gossip(&GossipData { payload: vec![0; 60_000].into(), ..data }));
        // More than the sockets take.
        while router.shared.waiting() < 4 * 60_000 {
            ended.write_all(&bytes).await.unwrap();
            tokio::task::yield_now().await;
        }
        ended.shutdown().await.unwrap();
        while !is_answered(&mut TcpStream::connect(router.local_addr()).await.unwrap()).await {}
        drop(ended);
    }
}
