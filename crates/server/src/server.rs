use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{CacheManager, HandoverTimeout};
use consort_hotrod::ServerAddress;
use consort_memory::Budget;
use consort_sasl::Mechanism;
use consort_tls::{ClientCertificates, Identity, ProtocolSettings};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::catalog::admin_error::{AdminError, check_cache_name};
use crate::catalog::caches::{Caches, CachesSettings};
use crate::catalog::data_directory::{Data, DataError};
use crate::catalog::default_cache;
use crate::catalog::definition::CacheDefinitions;
use crate::catalog::predefined::{self, CachesHandle, PredefinedError};
use crate::catalog::predefined_schemas::{self, SchemaFile};
use crate::catalog::{cluster_log, stats_publisher};
use crate::connection::acceptor::{Acceptor, KeptPorts, Port};
use crate::connection::handshake_pool::HandshakePool;
use crate::limits::{ACCEPT_BACKLOG, CONNECTIONS_PER_ADDRESS_MAX};
use crate::memory::Memory;
use crate::metrics::telemetry::Telemetry;
use crate::ops::{register_transforms, transactions};
use crate::security::tls::TlsSettings;
use crate::security::{
    Security, SecurityError, SecuritySettings, TlsHandle, Tokens, TokensHandle, Users, UsersHandle,
};
use crate::transport::addresses::Addresses;
use crate::transport::ip_filter::IpFilter;

/// The server cannot start; its manager is closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// Threads for unauthenticated clients cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// The shared caches cannot be opened.
    #[error("cannot join the other servers: {0}")]
    Caches(String),
    /// The persistent data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The settings of security contradict each other.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Other servers of the cluster serve its caches to users only.
    #[error(
        "other servers of this cluster require authentication, and this one has no users: it would serve their caches to everyone"
    )]
    WeakerAuthentication,
    /// The default cache cannot have this name.
    #[error("default cache: {0}")]
    DefaultCache(String),
    /// The predefined caches cannot be created.
    #[error(transparent)]
    Predefined(#[from] PredefinedError),
}

/// A further port for clients, with the users and the TLS of the first one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FurtherPort {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) ip_filter: IpFilter,
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    pub(crate) host: String,
    pub(crate) port: u16,
    health_port: Option<u16>,
    stays_after_stop: bool,
    connections_per_address: usize,
    pub(crate) advertised: Option<String>,
    pub(crate) advertised_port: Option<u16>,
    pub(crate) ip_filter: IpFilter,
    pub(crate) further_ports: Vec<FurtherPort>,
    pub(crate) data: Option<PathBuf>,
    recovery_timeout: Option<Duration>,
    pub(crate) definitions: Option<CacheDefinitions>,
    pub(crate) schemas: Vec<SchemaFile>,
    pub(crate) default_cache: Option<String>,
    memory: Memory,
    pub(crate) security: SecuritySettings,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 11222,
            health_port: None,
            stays_after_stop: false,
            connections_per_address: CONNECTIONS_PER_ADDRESS_MAX,
            advertised: None,
            advertised_port: None,
            ip_filter: IpFilter::default(),
            further_ports: Vec::new(),
            data: None,
            recovery_timeout: None,
            definitions: None,
            schemas: Vec::new(),
            default_cache: Some(default_cache::NAME.to_owned()),
            memory: Memory::default(),
            security: SecuritySettings::default(),
        }
    }
}

impl ServerBuilder {
    /// The host name or address to listen on; by default the loopback, because without users every client can do everything.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self
    }

    /// The port, 0 for any.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Answers health requests on this port, too, 0 for any, in HTTP without TLS; clients cannot exhaust it.
    #[must_use]
    pub const fn health_port(mut self, port: u16) -> Self {
        self.health_port = Some(port);
        self
    }

    /// Keeps [`Server::serve_until`] running until its `end` after an operator has stopped all servers: the health port answers that
    /// the server is alive and not ready. For supervisors that start ended processes again, such as Kubernetes.
    #[must_use]
    pub const fn stay_after_cluster_stop(mut self) -> Self {
        self.stays_after_stop = true;
        self
    }

    /// The limit of connections from one address, by default 4,096, a quarter of all; 0 is no limit. IPv6 addresses of one
    /// network (/64) count together, as do all clients behind a proxy; this host has no limit.
    #[must_use]
    pub const fn connections_per_address(mut self, max: usize) -> Self {
        self.connections_per_address = max;
        self
    }

    /// The host name or address for clients' topologies; by default that on which the server listens.
    #[must_use]
    pub fn advertised(mut self, host: impl Into<String>) -> Self {
        self.advertised = Some(host.into());
        self
    }

    /// The port for clients' topologies; by default that on which the server listens.
    #[must_use]
    pub const fn advertised_port(mut self, port: u16) -> Self {
        self.advertised_port = Some(port);
        self
    }

    pub(crate) fn ip_filter(mut self, filter: IpFilter) -> Self {
        self.ip_filter = filter;
        self
    }

    pub(crate) fn further_ports(mut self, ports: Vec<FurtherPort>) -> Self {
        self.further_ports = ports;
        self
    }

    /// The directory for data that outlive all servers: definitions of non-volatile caches, schemas, and persistent counters.
    /// Each server needs its own.
    ///
    /// After all servers have ended, they serve again once all of the last topology are back. A server that had left earlier may
    /// not know the latest changes.
    #[must_use]
    pub fn data(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data = Some(directory.into());
        self
    }

    /// Creates these caches on all servers before the first client is served, unless they exist. One with another configuration
    /// keeps the server from starting.
    #[must_use]
    pub fn caches(mut self, definitions: CacheDefinitions) -> Self {
        self.definitions = Some(definitions);
        self
    }

    /// Registers these schemas before the first client is served, as if a client had put them; those of the same names are
    /// replaced. One with an error keeps the server from starting.
    #[must_use]
    pub fn schemas(mut self, schemas: impl Into<Vec<SchemaFile>>) -> Self {
        self.schemas = schemas.into();
        self
    }

    /// The cache of clients that name none, by default `default`. A client's first request creates it, as if by
    /// `@@cache@getorcreate` without a definition, unless it exists.
    #[must_use]
    pub fn default_cache(mut self, name: impl Into<String>) -> Self {
        self.default_cache = Some(name.into());
        self
    }

    /// Refuses the requests of clients that name no cache.
    #[must_use]
    pub fn no_default_cache(mut self) -> Self {
        self.default_cache = None;
        self
    }

    /// Counts in this budget the bytes that clients make the server hold besides entries. Clients get a quarter of it, or 256 MiB
    /// if that is more, but at most a half; without a budget 256 MiB.
    #[must_use]
    pub fn memory(mut self, process: Budget) -> Self {
        self.memory = Memory { transfer_time: self.memory.transfer_time, ..Memory::within(process) };
        self
    }

    /// The time for a request to arrive, or for responses to be read, besides their bytes' at 256 KiB/s; by default 30 s.
    #[must_use]
    pub const fn transfer_time(mut self, time: Duration) -> Self {
        self.memory.transfer_time = time;
        self
    }

    /// The time after which the server starts without missing servers of the last topology; by default it waits.
    #[must_use]
    pub const fn recovery_timeout(mut self, timeout: Duration) -> Self {
        self.recovery_timeout = Some(timeout);
        self
    }

    /// Serves clients within TLS only, with this certificate. A requested client certificate can authenticate: its common name is
    /// the user's.
    #[must_use]
    pub fn tls(mut self, identity: Identity, clients: ClientCertificates) -> Self {
        self.security.tls = Some(TlsSettings { identity, clients });
        self
    }

    /// The versions and cipher suites of TLS; by default all supported ones.
    #[must_use]
    pub fn tls_protocols(mut self, protocols: ProtocolSettings) -> Self {
        self.security.tls_protocols = protocols;
        self
    }

    /// Serves these users only, with their roles' permissions; without users every client may do everything.
    #[must_use]
    pub fn users(mut self, users: Users) -> Self {
        self.security.users = Some(users);
        self
    }

    /// Returns the number of users; `None` without users.
    pub fn users_count(&self) -> Option<usize> {
        self.security.users.as_ref().map(Users::count)
    }

    /// Whether clients are served within TLS only.
    pub const fn has_tls(&self) -> bool {
        self.security.tls.is_some()
    }

    /// Accepts these tokens for authentication (OAUTHBEARER), within TLS.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.security.tokens = Some(tokens);
        self
    }

    /// The mechanisms of authentication; by default all possible ones, without TLS none that sends a secret in cleartext.
    #[must_use]
    pub fn mechanisms(mut self, mechanisms: impl Into<Vec<Mechanism>>) -> Self {
        self.security.mechanisms = Some(mechanisms.into());
        self
    }

    /// Accepts passwords and tokens without TLS, although anyone on the network path can read them.
    #[must_use]
    pub const fn allow_cleartext(mut self) -> Self {
        self.security.allow_cleartext = true;
        self
    }

    /// Serves the metrics without authentication; by default, with users, they require the MONITOR permission.
    #[must_use]
    pub const fn public_metrics(mut self) -> Self {
        self.security.public_metrics = true;
        self
    }

    /// Serves every client even if other servers have users. By default a server without users does not start beside these, and
    /// refuses its clients when one joins later.
    #[must_use]
    pub const fn allow_weaker_authentication(mut self) -> Self {
        self.security.allows_weaker = true;
        self
    }

    /// The time from a client's connection to its first request, or its authentication; by default 10 s.
    #[must_use]
    pub const fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.security.handshake_timeout = Some(timeout);
        self
    }

    /// Checks that the settings of security do not contradict each other, as [`Self::start`] does. Passwords in cleartext are
    /// hashed meanwhile.
    pub fn check_security(&self) -> Result<(), SecurityError> {
        Security::new(self.security.clone()).map(drop)
    }

    /// Starts to listen, and owns the manager from now on.
    pub async fn start(mut self, manager: CacheManager) -> Result<Server, ServerError> {
        let Prepared { security, handshake_pool, sockets, data } = match self.prepare().await {
            Ok(prepared) => prepared,
            Err(error) => {
                manager.abort().await;
                return Err(error);
            }
        };
        let Sockets { client: (address, listener), health, further } = sockets;
        let (health_address, health) = health.unzip();
        let host = self.advertised.unwrap_or_else(|| address.ip().to_string());
        let port = self.advertised_port.unwrap_or_else(|| address.port());
        let endpoint = ServerAddress { host: host.into(), port };
        let telemetry = Arc::new(Telemetry::default());
        let addresses = Addresses::new(self.connections_per_address);
        let mut further_addresses = Vec::new();
        let mut ports = vec![Port { listener, addresses: addresses.clone().filtered(self.ip_filter) }];
        for ((address, listener), filter) in further {
            further_addresses.push(address);
            ports.push(Port { listener, addresses: addresses.clone().filtered(filter) });
        }
        let mut acceptor = Acceptor::new(ports, health, security.clone(), telemetry.clone(), handshake_pool);
        let settings = CachesSettings {
            endpoint,
            security: security.clone(),
            data: data.as_ref(),
            default_cache: self.default_cache,
            telemetry,
            memory: self.memory,
            register_transforms,
        };
        let opening = open(manager, settings, self.definitions, self.schemas);
        let caches = tokio::select! {
            caches = opening => caches?,
            // New connections are accepted meanwhile, and clients wait.
            never = acceptor.run() => match never {},
        };
        let (caches, stays_after_stop) = (Arc::new(caches), self.stays_after_stop);
        Ok(Server {
            address,
            further_addresses,
            health_address,
            stays_after_stop,
            caches,
            security,
            acceptor,
        })
    }

    /// Checks the settings, and opens sockets and files, before other servers are affected.
    async fn prepare(&mut self) -> Result<Prepared, ServerError> {
        if let Some(Err(error)) = self.default_cache.as_deref().map(check_cache_name) {
            return Err(ServerError::DefaultCache(error.to_string()));
        }
        let security = Arc::new(Security::new(std::mem::take(&mut self.security))?);
        let handshake_pool =
            HandshakePool::new(self.memory.handshakes.clone()).map_err(ServerError::Threads)?;
        let client = listen(&self.host, self.port).await?;
        let health = match self.health_port {
            Some(port) => Some(listen(&self.host, port).await?),
            None => None,
        };
        let mut further = Vec::new();
        for FurtherPort { host, port, ip_filter } in std::mem::take(&mut self.further_ports) {
            further.push((listen(&host, port).await?, ip_filter));
        }
        let data = match self.data.take() {
            Some(directory) => Some(Data::in_directory(directory, self.recovery_timeout).await?),
            None => None,
        };
        Ok(Prepared { security, handshake_pool, sockets: Sockets { client, health, further }, data })
    }
}

struct Prepared {
    security: Arc<Security>,
    handshake_pool: HandshakePool,
    sockets: Sockets,
    data: Option<Data>,
}

type BoundSocket = (SocketAddr, TcpListener);

struct Sockets {
    client: BoundSocket,
    health: Option<BoundSocket>,
    further: Vec<(BoundSocket, IpFilter)>,
}

async fn listen(host: &str, port: u16) -> Result<BoundSocket, ServerError> {
    let listening = consort_net::listen(host, port, ACCEPT_BACKLOG).await;
    let listening = listening.and_then(|listener| Ok((listener.local_addr()?, listener)));
    listening.map_err(|error| ServerError::Listen { address: format!("{host}:{port}"), error })
}

async fn open(
    manager: CacheManager,
    settings: CachesSettings<'_>,
    definitions: Option<CacheDefinitions>,
    schemas: Vec<SchemaFile>,
) -> Result<Caches, ServerError> {
    let caches = Caches::open(manager, settings).await.map_err(|error| match error {
        AdminError::Data(error) => error.into(),
        error => ServerError::Caches(error.to_string()),
    })?;
    if caches.security().requirement.refuses() {
        if let Err(error) = caches.end().await {
            tracing::warn!(%error, "a server that cannot start has left with an error");
        }
        return Err(ServerError::WeakerAuthentication);
    }
    // Indexes of caches are of the fields of schemas.
    let made = async {
        predefined_schemas::register(&caches, &schemas).await?;
        match &definitions {
            Some(definitions) => predefined::make(&caches, definitions).await.map(drop),
            None => Ok(()),
        }
    };
    if let Err(error) = made.await {
        // Other servers may already rely on this one.
        if let Err(error) = caches.end().await {
            tracing::warn!(%error, "a server that cannot start has left with an error");
        }
        return Err(error.into());
    }
    Ok(caches)
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    further_addresses: Vec<SocketAddr>,
    health_address: Option<SocketAddr>,
    stays_after_stop: bool,
    caches: Arc<Caches>,
    security: Arc<Security>,
    acceptor: Acceptor,
}

impl Server {
    /// Returns a builder of a server's configuration.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the addresses of the further ports for clients, which a server's file can have.
    pub fn further_addresses(&self) -> &[SocketAddr] {
        &self.further_addresses
    }

    /// Returns the address of the port for health requests.
    pub const fn health_address(&self) -> Option<SocketAddr> {
        self.health_address
    }

    /// Returns the handle that creates further caches.
    pub fn caches(&self) -> CachesHandle {
        CachesHandle::new(&self.caches)
    }

    /// Returns the handle that replaces the users; `None` without users.
    pub fn users(&self) -> Option<UsersHandle> {
        self.security.authenticator.clone().map(UsersHandle::new)
    }

    /// Returns the handle that replaces the accepted tokens; `None` if the server accepts none.
    pub fn tokens(&self) -> Option<TokensHandle> {
        self.security.authenticator.clone().and_then(TokensHandle::new)
    }

    /// Returns the handle that replaces certificate and key; `None` without TLS.
    pub fn tls(&self) -> Option<TlsHandle> {
        self.security.tls.clone().map(TlsHandle::new)
    }

    /// Serves clients until `end` completes, or until an operator stops all servers. Then the server moves clients to others while it
    /// still executes their requests. It closes each connection when its requests are answered, hands over entries that only it has,
    /// unless all stop, and leaves. After a stop of all servers this completes at once, or with `end`
    /// ([`ServerBuilder::stay_after_cluster_stop`]). If this future is dropped before, the server ends as after a crash.
    ///
    /// # Errors
    ///
    /// [`HandoverTimeout`], if the other servers may not have all entries.
    pub async fn serve_until(self, end: impl Future<Output = ()>) -> Result<(), HandoverTimeout> {
        let Self { caches, mut acceptor, stays_after_stop, .. } = self;
        let mut end = pin!(end);
        // The task ends with this future, as the connections do, also if this future is dropped.
        let mut following = JoinSet::new();
        following.spawn({
            let caches = caches.clone();
            async move {
                tokio::join!(
                    caches.follow(),
                    stats_publisher::publish(&caches),
                    cluster_log::log_changes(&caches),
                    transactions::reap(&caches)
                )
            }
        });
        acceptor.start_serving(caches.clone());
        let is_ended = tokio::select! {
            () = &mut end => true,
            () = caches.stop.agreed() => {
                tracing::info!("all servers of the cluster stop, as an operator has asked: answering requests and leaving");
                false
            }
            never = acceptor.run() => match never {},
        };
        let has_others = tokio::select! {
            has_others = caches.withdraw() => has_others,
            never = acceptor.run() => match never {},
        };
        let mut kept = KeptPorts::default();
        acceptor.drain(has_others, caches.stop.is_agreed().then_some(&mut kept)).await;
        following.shutdown().await;
        // Requests that were abandoned may use the caches for a moment more.
        let left = caches.end().await;
        kept.clients.shutdown().await;
        if stays_after_stop && !is_ended {
            tracing::info!(
                "stopped with all servers of the cluster; the process stays until its end is requested"
            );
            end.await;
        }
        left
    }
}
