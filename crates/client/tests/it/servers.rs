//! Consort servers in this process.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use consort_cache::{CacheManager, Channel};
use consort_client::Client;
use consort_conf::{Variables, parse_stack};
use consort_server::{Server, ServerBuilder, TlsHandle, TokensHandle};
use consort_testkit::Owners;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Ten times as long as any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Detects a crash within two seconds.
const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><MERGE3/>\
    <FD_ALL3 timeout=\"1500\" interval=\"200\"/><VERIFY_SUSPECT2 timeout=\"300\"/><NAKACK2/><UNICAST3/>\
    <STABLE/><GMS join_timeout=\"200\"/><UFC/><MFC/><FRAG4/></config>";

/// A cache with two owners per key.
pub(crate) const DISTRIBUTED: &str = r#"{"distributed-cache": {"owners": 2}}"#;

/// A server with its own threads. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) at: SocketAddr,
    pub(crate) owners: Owners,
    /// Replaces the certificate, if the server has TLS.
    pub(crate) tls: Option<TlsHandle>,
    /// Replaces the tokens' keys, if the server accepts tokens.
    pub(crate) tokens: Option<TokensHandle>,
    /// The health port, if any.
    pub(crate) health: Option<SocketAddr>,
    runtime: Option<Runtime>,
}

impl Running {
    pub(crate) async fn start(cluster: &'static str, name: &'static str) -> Self {
        Self::secured(cluster, name, Server::builder()).await
    }

    /// Starts a server of this configuration.
    pub(crate) async fn secured(cluster: &'static str, name: &'static str, builder: ServerBuilder) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, started) = oneshot::channel();
        runtime.spawn(async move {
            let stack = parse_stack("servers", STACK, &Variables::new()).unwrap();
            let members = CacheManager::from_channel(Channel::from_config(stack.config)).name(name);
            let manager = members.connect(cluster).await.unwrap();
            let owners = Owners::of(&manager);
            let server = builder.port(0).start(manager).await.unwrap();
            let handles = (server.tls(), server.tokens(), server.health_address());
            assert!(sender.send((server.address(), owners, handles)).is_ok());
            server.serve_until(std::future::pending()).await.unwrap();
        });
        let (at, owners, (tls, tokens, health)) =
            timeout(PATIENCE, started).await.expect("the server starts").expect("the server starts");
        Self { at, owners, tls, tokens, health, runtime: Some(runtime) }
    }

    pub(crate) fn uri(&self) -> String {
        format!("hotrod://{}", self.at)
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.uri()).await.unwrap()
    }

    /// Starts a server, and a client that has created a cache.
    pub(crate) async fn with_cache(cluster: &'static str, cache: &str) -> (Self, Client) {
        let server = Self::start(cluster, "A").await;
        let client = server.client().await;
        client.administration().create(cache, DISTRIBUTED).await.unwrap();
        (server, client)
    }
}

impl Drop for Running {
    /// Kills the server like `kill -9`: its sockets close without a notice.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The sockets of this host at a port (Linux).
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Sockets {
    pub(crate) listening: usize,
    /// The servers' ends.
    pub(crate) served: usize,
    /// The clients' ends.
    pub(crate) made: usize,
}

impl Sockets {
    /// The kernel writes the table page by page while other tests open and close sockets, so an item may be
    /// missing or repeated. Each counts once, and two readings must agree.
    pub(crate) fn of(port: u16) -> Self {
        let mut before = lines_with(port);
        let lines = loop {
            let again = lines_with(port);
            if again == before {
                break again;
            }
            before = again;
        };
        let port = format!(":{port:04X}");
        let count = |is_it: &dyn Fn(&Socket) -> bool| lines.iter().filter(|socket| is_it(socket)).count();
        Self {
            listening: count(&|socket| socket.near.ends_with(&port) && socket.state == LISTENING),
            served: count(&|socket| socket.near.ends_with(&port) && socket.state == ESTABLISHED),
            made: count(&|socket| socket.far.ends_with(&port) && socket.state == ESTABLISHED),
        }
    }
}

/// A line of `/proc/net/tcp`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    near: String,
    far: String,
    state: String,
}

const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";

fn lines_with(port: u16) -> BTreeSet<Socket> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let sockets = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, near, far, state, ..] = fields[..] else { return None };
        let is_of_it = near.ends_with(&port) || far.ends_with(&port);
        is_of_it.then(|| Socket { near: near.into(), far: far.into(), state: state.into() })
    });
    sockets.collect()
}

/// The number of client connections to a port.
pub(crate) fn connections_to(port: u16) -> usize {
    Sockets::of(port).made
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}
