//! The server: listens, and ends when it is told to.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use consort_cache::{CacheManager, NotHandedOver};
use consort_hotrod::ServerAddress;
use consort_memory::Budget;
use consort_sasl::Mechanism;
use consort_tls::{ClientCertificates, Identity};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::addresses::Addresses;
use crate::admin_error::AdminError;
use crate::bounds::{CONNECTING_MAX, CONNECTIONS_PER_ADDRESS_MAX};
use crate::caches::Caches;
use crate::data::{Data, DataError};
use crate::definition::CacheDefinitions;
use crate::door::Door;
use crate::memory::Memory;
use crate::predefined::{self, CachesHandle, PredefinedError};
use crate::security::tls::TlsSettings;
use crate::security::{
    Security, SecurityError, Settings, TlsHandle, Tokens, TokensHandle, Users, UsersHandle,
};
use crate::strangers::Strangers;
use crate::telemetry::Telemetry;
use crate::{changes, transactions};

/// A server could not start. Its manager is closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It cannot listen there.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        error: io::Error,
    },
    /// It cannot have threads for clients that it does not know yet.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// It cannot have the caches that all servers share.
    #[error("cannot join the other servers: {0}")]
    Caches(String),
    /// What it is to keep cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Who may do what, and how that is known, does not go together.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// It would serve to everyone what other servers of its cluster serve to users only.
    #[error(
        "other servers of this cluster require authentication, and this one has no users: it would serve their caches to everyone"
    )]
    WeakerAuthentication,
    /// Caches that it is to have cannot be made.
    #[error(transparent)]
    Predefined(#[from] PredefinedError),
}

/// What a server is to be like.
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    host: String,
    port: u16,
    health_port: Option<u16>,
    connections_per_address: usize,
    advertised: Option<String>,
    data: Option<PathBuf>,
    alone_after: Option<Duration>,
    definitions: Option<CacheDefinitions>,
    memory: Memory,
    security: Settings,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 11222,
            health_port: None,
            connections_per_address: CONNECTIONS_PER_ADDRESS_MAX,
            advertised: None,
            data: None,
            alone_after: None,
            definitions: None,
            memory: Memory::default(),
            security: Settings::default(),
        }
    }
}

impl ServerBuilder {
    /// The host name or address to listen on. The loopback's unless it is said: without users, who can connect can do
    /// everything.
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

    /// Answers requests for health on this port, too, 0 for any: in HTTP without TLS, and not in the way of clients, who can
    /// use up the connections of theirs.
    #[must_use]
    pub const fn health_port(mut self, port: u16) -> Self {
        self.health_port = Some(port);
        self
    }

    /// Connections that one address may have, of IPv6 the addresses of a network together (/64); 0 is no limit.
    /// 4,096 unless it is said, a quarter of all. Where clients come by a proxy or a gateway, all of them have its address.
    /// This host has no limit.
    #[must_use]
    pub const fn connections_per_address(mut self, max: usize) -> Self {
        self.connections_per_address = max;
        self
    }

    /// The host name or address that clients are told. Where it listens unless it is said.
    #[must_use]
    pub fn advertised(mut self, host: impl Into<String>) -> Self {
        self.advertised = Some(host.into());
        self
    }

    /// Keeps there what is to outlive all servers: definitions of caches that are not volatile, schemas, and persistent
    /// counters. The directory is this server's alone. Without one, nothing outlives the last server.
    ///
    /// When all servers have ended, they start to serve again once all are back that were there to the last, because one
    /// that had gone before may not know what happened then.
    #[must_use]
    pub fn data(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data = Some(directory.into());
        self
    }

    /// Makes these caches before the first client is served, unless they are there: other servers have them then, too. If one
    /// is there and is different, the server does not start.
    #[must_use]
    pub fn caches(mut self, definitions: CacheDefinitions) -> Self {
        self.definitions = Some(definitions);
        self
    }

    /// Counts the bytes that clients make the server hold besides the entries of caches (requests that have not arrived as a
    /// whole, responses, streams, filters of near caches) in this budget, of which they get a quarter, or 256 MiB if that is
    /// more, but at most a half. Unless it is said, they get 256 MiB.
    #[must_use]
    pub fn memory(mut self, process: Budget) -> Self {
        self.memory = Memory { transfer_time: self.memory.transfer_time, ..Memory::within(process) };
        self
    }

    /// How long a request may take to arrive as a whole, or responses to be taken, besides the time for their bytes at 256 KiB/s.
    /// 30 s unless it is said. A client that takes longer has its connection closed.
    #[must_use]
    pub const fn transfer_time(mut self, time: Duration) -> Self {
        self.memory.transfer_time = time;
        self
    }

    /// After this time the server goes on without those that were there to the last and are not back. It waits for them
    /// unless it is said.
    #[must_use]
    pub const fn alone_after(mut self, patience: Duration) -> Self {
        self.alone_after = Some(patience);
        self
    }

    /// Only clients within TLS are served, who see this certificate. With client certificates that are asked for, a client
    /// can show by its own who it is: the common name in it is the user's name.
    #[must_use]
    pub fn tls(mut self, identity: Identity, clients: ClientCertificates) -> Self {
        self.security.tls = Some(TlsSettings { identity, clients });
        self
    }

    /// Only these users are served, each with what its roles permit. Without users everybody may do everything.
    #[must_use]
    pub fn users(mut self, users: Users) -> Self {
        self.security.users = Some(users);
        self
    }

    /// How many users the server has; nothing where there are none and everybody may do everything.
    pub fn users_count(&self) -> Option<usize> {
        self.security.users.as_ref().map(Users::count)
    }

    /// Users can show who they are by these tokens (OAUTHBEARER), within TLS.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.security.tokens = Some(tokens);
        self
    }

    /// How users may show who they are. Unless it is said: in all ways that are possible, but without TLS in none that takes
    /// a secret over the line as it is.
    #[must_use]
    pub fn mechanisms(mut self, mechanisms: impl Into<Vec<Mechanism>>) -> Self {
        self.security.mechanisms = Some(mechanisms.into());
        self
    }

    /// Secrets may be on the line as they are also without TLS: who can read along has them.
    #[must_use]
    pub const fn allow_secrets_in_the_open(mut self) -> Self {
        self.security.allows_secrets_in_the_open = true;
        self
    }

    /// Everybody may read the metrics, as the health. Unless it is said and there are users, only those may who may see how
    /// things are.
    #[must_use]
    pub const fn open_metrics(mut self) -> Self {
        self.security.metrics_are_open = true;
        self
    }

    /// Serves everyone also where other servers of the cluster have users. Unless it is said, a server without users does not
    /// start beside such servers, and refuses its clients when one joins later.
    #[must_use]
    pub const fn allow_weaker_authentication(mut self) -> Self {
        self.security.allows_weaker = true;
        self
    }

    /// How long a client may take from its connection to its first request, or until it has shown who it is. 10 s unless it
    /// is said: clients do so at once, and others are not to hold what they could need.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.security.patience = Some(patience);
        self
    }

    /// Listens. The manager is the server's from now on.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub async fn start(self, manager: CacheManager) -> Result<Server, ServerError> {
        let security = match Security::new(self.security) {
            Ok(security) => Arc::new(security),
            Err(error) => {
                manager.abort().await;
                return Err(error.into());
            }
        };
        let strangers = match Strangers::new(self.memory.strangers.clone()) {
            Ok(strangers) => strangers,
            Err(error) => {
                manager.abort().await;
                return Err(ServerError::Threads(error));
            }
        };
        let listening = async {
            let listener = listen(&self.host, self.port).await?;
            let health = match self.health_port {
                Some(port) => Some(listen(&self.host, port).await?),
                None => None,
            };
            Ok((listener, health))
        };
        let ((address, listener), health) = match listening.await {
            Ok(listening) => listening,
            Err(error) => {
                manager.abort().await;
                return Err(error);
            }
        };
        let (health_address, health) = health.unzip();
        let host = self.advertised.unwrap_or_else(|| address.ip().to_string());
        let endpoint = ServerAddress { host: host.into(), port: address.port() };
        let alone_after = self.alone_after;
        let data = match self.data {
            Some(directory) => match Data::in_directory(directory, alone_after).await {
                Ok(data) => Some(data),
                Err(error) => {
                    manager.abort().await;
                    return Err(error.into());
                }
            },
            None => None,
        };
        let telemetry = Arc::new(Telemetry::default());
        let addresses = Addresses::new(self.connections_per_address);
        let mut door = Door::new(listener, health, security.clone(), telemetry.clone(), strangers, addresses);
        let (memory, definitions) = (self.memory, self.definitions);
        let opening =
            open(manager, endpoint, security.clone(), data.as_ref(), telemetry, memory, definitions);
        let caches = tokio::select! {
            caches = opening => caches?,
            // Who comes meanwhile is met, and clients wait.
            never = door.attend() => match never {},
        };
        Ok(Server { address, health_address, caches: Arc::new(caches), security, door })
    }
}

async fn listen(host: &str, port: u16) -> Result<(SocketAddr, TcpListener), ServerError> {
    let listening = consort_net::listen(host, port, CONNECTING_MAX).await;
    let listening = listening.and_then(|listener| Ok((listener.local_addr()?, listener)));
    listening.map_err(|error| ServerError::Listen { address: format!("{host}:{port}"), error })
}

/// Has what the other servers have, and what it is to have itself.
async fn open(
    manager: CacheManager,
    endpoint: ServerAddress,
    security: Arc<Security>,
    data: Option<&Data>,
    telemetry: Arc<Telemetry>,
    memory: Memory,
    definitions: Option<CacheDefinitions>,
) -> Result<Caches, ServerError> {
    let caches = Caches::open(manager, endpoint, security, data, telemetry, memory).await.map_err(
        |error| match error {
            AdminError::Data(error) => error.into(),
            error => ServerError::Caches(error.to_string()),
        },
    )?;
    if caches.security().requirement.refuses() {
        if let Err(error) = caches.end().await {
            tracing::warn!(%error, "a server that does not start leaves");
        }
        return Err(ServerError::WeakerAuthentication);
    }
    if let Some(definitions) = definitions
        && let Err(error) = predefined::make(&caches, &definitions).await
    {
        // Others may have begun to rely on it.
        if let Err(error) = caches.end().await {
            tracing::warn!(%error, "a server that does not start leaves");
        }
        return Err(error.into());
    }
    Ok(caches)
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    health_address: Option<SocketAddr>,
    caches: Arc<Caches>,
    security: Arc<Security>,
    door: Door,
}

impl Server {
    /// What a server is to be like.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers requests for health only; nothing if it has no port for that.
    pub const fn health_address(&self) -> Option<SocketAddr> {
        self.health_address
    }

    /// By which it is told to have further caches.
    pub fn caches(&self) -> CachesHandle {
        CachesHandle::new(&self.caches)
    }

    /// By which it is given other users; nothing if it has none, and everybody may do everything.
    pub fn users(&self) -> Option<UsersHandle> {
        self.security.authenticator.clone().map(UsersHandle::new)
    }

    /// By which it is told to believe other tokens; nothing if it believes none.
    pub fn tokens(&self) -> Option<TokensHandle> {
        self.security.authenticator.clone().and_then(TokensHandle::new)
    }

    /// By which it is given another certificate and key; nothing if it has no TLS.
    pub fn tls(&self) -> Option<TlsHandle> {
        self.security.tls.clone().map(TlsHandle::new)
    }

    /// Serves clients until `end` is there. Then it lets clients go over to other servers while it still performs their requests,
    /// closes connections when all that was asked there is answered, hands over what only it has, and leaves. If it is dropped before, it is gone at once, for clients and for its cluster as after a crash.
    ///
    /// # Errors
    ///
    /// [`NotHandedOver`], if others may not have everything.
    pub async fn serve_until(self, end: impl Future<Output = ()>) -> Result<(), NotHandedOver> {
        let Self { caches, mut door, .. } = self;
        // Like the connections it ends with this, also if this is dropped.
        let mut following = JoinSet::new();
        following.spawn({
            let caches = caches.clone();
            async move { tokio::join!(caches.follow(), changes::tell(&caches), transactions::reap(&caches)) }
        });
        door.open(caches.clone());
        tokio::select! {
            () = end => {}
            never = door.attend() => match never {},
        }
        let has_others = tokio::select! {
            has_others = caches.withdraw() => has_others,
            never = door.attend() => match never {},
        };
        door.close(has_others).await;
        following.shutdown().await;
        // Requests that were given up may have the caches for a moment more.
        caches.end().await
    }
}
