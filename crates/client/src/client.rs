//! The client: its configuration, servers and caches.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use bytes::Bytes;
use consort_encoding::{Encoding, Postcard, Raw};
use consort_hotrod::{CacheTopology, Intelligence, ProtocolVersion, ServerAddress, Text};
use consort_sasl::Mechanism;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::connection::Traffic;
use crate::connection_handle::ConnectionHandle;
use crate::counter_events::CounterListenerTable;
use crate::credentials::Credentials;
use crate::error::{ConnectError, ConnectionError};
use crate::failover_clusters::{FailoverCluster, FailoverClusters};
use crate::legacy;
use crate::limits::SWITCH_AFTER;
use crate::near::NearCache;
use crate::options::CacheOptions;
use crate::routing::{Routing, in_turn};
use crate::security::Security;
use crate::server::Server;
use crate::stream::Tls;
use crate::uri;

/// Settings of all connections of a client.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) intelligence: Intelligence,
    pub(crate) version: Option<ProtocolVersion>,
}

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    pub(crate) servers: Vec<ServerAddress>,
    pub(crate) clusters: Vec<FailoverCluster>,
    pub(crate) switch_after: u32,
    pub(crate) settings: Settings,
    pub(crate) tls: Option<Tls>,
    pub(crate) credentials: Credentials,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let settings = Settings { intelligence: Intelligence::Hash, version: None };
        Self {
            servers: Vec::new(),
            clusters: Vec::new(),
            switch_after: SWITCH_AFTER,
            settings,
            tls: None,
            credentials: Credentials::default(),
        }
    }
}

impl ClientBuilder {
    /// Adds an initial server. The client learns the cluster's other servers from topologies.
    #[must_use]
    pub fn server(mut self, server: ServerAddress) -> Self {
        self.servers.push(server);
        self
    }

    /// Sets how the client uses topologies. By default it sends requests to the owners of keys. A basic
    /// client uses the initial servers only.
    #[must_use]
    pub const fn intelligence(mut self, intelligence: Intelligence) -> Self {
        self.settings.intelligence = intelligence;
        self
    }

    /// Forces a protocol version: 3.0 or later, with the feature `legacy` 2.0 or later. By default the newest
    /// version that both sides support.
    #[must_use]
    pub const fn version(mut self, version: ProtocolVersion) -> Self {
        self.settings.version = Some(version);
        self
    }

    /// Uses TLS with all servers.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Authenticates as this user, with the strongest mechanism that both sides support: SCRAM-SHA-512,
    /// SCRAM-SHA-384, SCRAM-SHA-256, and with TLS also PLAIN.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.credentials = self.credentials.with_user(name, password);
        self
    }

    /// Authenticates with this token (OAUTHBEARER), with TLS only.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.credentials = self.credentials.with_token(token);
        self
    }

    /// Authenticates with this mechanism only. EXTERNAL uses the certificate of [`Tls::identity`]. PLAIN and
    /// OAUTHBEARER set here are used also without TLS; anyone on the network path can read the credentials.
    #[must_use]
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.credentials = self.credentials.with_only(mechanism);
        self
    }

    /// Parses a URI as [`Client::connect`] does, so that the configuration can be inspected or changed.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Uri`], or [`ConnectError::Tls`] for invalid files.
    pub fn from_uri(uri: &str) -> Result<Self, ConnectError> {
        uri::parse(uri)
    }

    /// Returns the initial servers.
    pub fn servers(&self) -> &[ServerAddress] {
        &self.servers
    }

    /// Returns whether TLS is used.
    pub const fn is_within_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects. Returns as soon as one server is usable; tries the other clusters if none of the first is.
    ///
    /// # Errors
    ///
    /// If no server is usable, or the configuration is invalid.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        if self.settings.version.is_some_and(|version| version < legacy::OLDEST) {
            let reason = "versions before 3.0 are spoken with the feature legacy".to_owned();
            return Err(ConnectError::Uri { reason });
        }
        let inner = Arc::new(Inner {
            settings: self.settings,
            security: Security::new(self.tls, self.credentials)?,
            clock: Clock::start(),
            runtime: Handle::current(),
            clusters: FailoverClusters::new(self.servers, self.clusters, self.switch_after)?,
            servers: RwLock::default(),
            caches: Mutex::default(),
            tasks: Mutex::default(),
            changed: Arc::default(),
            counter_listeners: CounterListenerTable::default(),
            turn: AtomicUsize::new(0),
            has_strangers: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        inner.connect().await?;
        inner.keep_cluster();
        Ok(Client { inner })
    }
}

/// A Hot Rod client. Cheap to clone; its connections close with the last clone and the last cache handle.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.servers()).finish()
    }
}

impl Client {
    /// Returns the default configuration.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to `hotrod://[user:password@]host[:port][,host[:port]…]`, as soon as one server is usable;
    /// `hotrods` uses TLS. Percent-encode characters of names and passwords other than letters and digits.
    /// After a question mark, properties can follow as `name=value`, separated by `&`. Supported properties
    /// of Infinispan's clients: `client_intelligence`, `protocol_version`, `sasl_mechanism`, `auth_username`,
    /// `auth_password`, `auth_token`, `trust_store_file_name`, `key_store_file_name` (a certificate and its
    /// key), `sni_host_name` ([`Tls::server_name`]), and `cluster.NAME` for a failover cluster
    /// ([`ClientBuilder::cluster`]) as `host[:port][;host[:port]…]`. The files are PEM files; without a trust
    /// store the system's is used. Only Consort's client has `auth_password_file`: the password is the file's
    /// first line.
    ///
    /// # Errors
    ///
    /// If no server is usable, or the URI is invalid.
    pub async fn connect(uri: &str) -> Result<Self, ConnectError> {
        uri::parse(uri)?.connect().await
    }

    /// Returns a handle of a cache of serde values. The first operation fails if the servers do not have the
    /// cache.
    pub fn cache<K, V>(&self, name: &str) -> Cache<K, V> {
        self.encoded(name, Postcard, Postcard)
    }

    /// Returns a handle of a cache of plain bytes.
    pub fn raw(&self, name: &str) -> Cache<Bytes, Bytes, Raw, Raw> {
        self.encoded(name, Raw, Raw)
    }

    /// Returns a handle of a cache with these encodings of keys and values.
    pub fn encoded<K, V, KE: Encoding, VE: Encoding>(
        &self,
        name: &str,
        keys: KE,
        values: VE,
    ) -> Cache<K, V, KE, VE> {
        Cache::new(self.inner.clone(), self.inner.cache(name), keys, values, CacheOptions::default())
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the state of each server of the current cluster: the initial ones and those learnt from
    /// topologies.
    pub fn states(&self) -> Vec<ServerState> {
        let of = |server: &Arc<Server>| ServerState {
            address: server.address.clone(),
            is_connected: server.handle().is_some(),
            trouble: server.trouble(),
        };
        self.inner.all().iter().map(of).collect()
    }

    /// Returns the usable servers.
    pub fn servers(&self) -> Vec<String> {
        let servers = self.inner.all();
        servers.iter().filter(|server| server.handle().is_some()).map(ToString::to_string).collect()
    }

    /// Returns the summed traffic of the open connections.
    pub fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        for handle in self.inner.all().iter().filter_map(|server| server.handle()) {
            let Traffic { requests, answers, events, writes, reads } = handle.lock().traffic;
            sum.requests += requests;
            sum.answers += answers;
            sum.events += events;
            sum.writes += writes;
            sum.reads += reads;
        }
        sum
    }

    /// Closes all connections and waits until they are closed. Operations in progress fail.
    pub async fn close(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        let mut tasks = std::mem::take(&mut *self.inner.tasks());
        tasks.shutdown().await;
        self.inner.changed.notify_waiters();
    }
}

/// The state of a server.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// The server's address.
    pub address: ServerAddress,
    /// Whether the server is usable.
    pub is_connected: bool,
    /// Why the server is not usable; `None` while the client is connecting.
    pub trouble: Option<ConnectionError>,
}

/// The client's state of a cache.
pub(crate) struct CacheState {
    pub(crate) name: Text,
    /// The near cache shared by the handles of this cache, as long as one of them exists.
    pub(crate) near: Mutex<Weak<NearCache>>,
    routing: RwLock<Option<Arc<Routing<Arc<Server>>>>>,
}

impl CacheState {
    const fn new(name: Text) -> Self {
        Self { name, near: Mutex::new(Weak::new()), routing: RwLock::new(None) }
    }

    pub(crate) fn routing(&self) -> Option<Arc<Routing<Arc<Server>>>> {
        self.routing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn forget_routing(&self) {
        *self.routing.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The shared state of a client.
pub(crate) struct Inner {
    pub(crate) settings: Settings,
    security: Security,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    pub(crate) clusters: FailoverClusters,
    pub(crate) servers: RwLock<Vec<Arc<Server>>>,
    /// This lock also serialises the processing of topologies.
    pub(crate) caches: Mutex<BTreeMap<String, Arc<CacheState>>>,
    /// One task per server. The tasks end when the set is dropped.
    tasks: Mutex<JoinSet<()>>,
    pub(crate) changed: Arc<Notify>,
    pub(crate) counter_listeners: CounterListenerTable,
    turn: AtomicUsize,
    /// Some servers are in no topology. They are retired once a server of a topology is usable.
    pub(crate) has_strangers: AtomicBool,
    is_closed: AtomicBool,
}

impl Inner {
    pub(crate) fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Server>> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Spawns a background task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(task)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn cache(&self, name: &str) -> Arc<CacheState> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = caches.get(name) {
            return cache.clone();
        }
        let cache = Arc::new(CacheState::new(name.into()));
        caches.insert(name.to_owned(), cache.clone());
        cache
    }

    /// The cache state for requests that belong to no cache.
    pub(crate) fn no_cache(&self) -> CacheState {
        CacheState::new(Text::EMPTY)
    }

    /// A server of the current cluster.
    pub(crate) fn new_server(&self, address: &ServerAddress) -> Server {
        let (version, security) = (self.settings.version, self.security.clone());
        Server::new(address.clone(), self.clock, version, security, self.clusters.switches())
    }

    /// Returns the server with this address; starts connecting to it if it is new.
    fn server(&self, servers: &mut Vec<Arc<Server>>, address: &ServerAddress) -> Arc<Server> {
        if let Some(server) = servers.iter().find(|server| server.address == *address) {
            return server.clone();
        }
        let server = Arc::new(self.new_server(address));
        servers.push(server.clone());
        if !self.is_closed() {
            let seed = RandomState::new().build_hasher().finish();
            let mut tasks = self.tasks();
            // Reap the tasks of retired servers.
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(server.clone().keep(seed, self.changed.clone()), &self.runtime);
        }
        server
    }

    /// Ensures that the initial servers are among the servers.
    pub(crate) fn start_initial(&self) {
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        for address in self.clusters.servers() {
            self.server(&mut servers, address);
        }
    }

    pub(crate) async fn wait_for_one(&self) -> Result<(), ConnectError> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let servers = self.all();
            if servers.iter().any(|server| server.handle().is_some()) {
                return Ok(());
            }
            let troubles: Vec<(String, ConnectionError)> =
                servers.iter().filter_map(|server| Some((server.to_string(), server.trouble()?))).collect();
            if troubles.len() == servers.len() {
                return Err(ConnectError::Unreachable(troubles));
            }
            // By then each server is connected or has failed.
            changed.await;
        }
    }

    /// Returns a future that waits for a change of the servers. Create it before inspecting them.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Returns the failure of any server that has one.
    pub(crate) fn trouble(&self) -> Option<ConnectionError> {
        self.all().iter().find_map(|server| server.trouble())
    }

    /// Chooses a server and its connection for a request: the preferred server, or else the best usable one.
    pub(crate) fn choose(
        &self,
        routing: Option<&Routing<Arc<Server>>>,
        preferred: Option<&Arc<Server>>,
        key: Option<&[u8]>,
        avoided: &[Arc<Server>],
    ) -> Option<(Arc<Server>, Arc<ConnectionHandle>)> {
        // Use a server that may hang only if there is no other.
        let found = self.choose_among(routing, preferred, key, avoided, |handle| !handle.is_silent());
        found.or_else(|| self.choose_among(routing, preferred, key, avoided, |_| true))
    }

    fn choose_among(
        &self,
        routing: Option<&Routing<Arc<Server>>>,
        preferred: Option<&Arc<Server>>,
        key: Option<&[u8]>,
        avoided: &[Arc<Server>],
        is_good: impl Fn(&ConnectionHandle) -> bool,
    ) -> Option<(Arc<Server>, Arc<ConnectionHandle>)> {
        let usable = |server: &Arc<Server>| {
            if avoided.iter().any(|avoided| Arc::ptr_eq(avoided, server)) {
                return None;
            }
            let handle = server.handle().filter(|handle| is_good(handle))?;
            Some((server.clone(), handle))
        };
        let turn = || self.turn.fetch_add(1, Ordering::Relaxed);
        let of_routing = || {
            let turn = if key.is_some() { 0 } else { turn() };
            routing?.choose(key, turn, usable)
        };
        let chosen = preferred.and_then(usable).or_else(of_routing);
        chosen.or_else(|| {
            let servers = self.servers.read().unwrap_or_else(PoisonError::into_inner);
            in_turn(&servers, turn(), usable)
        })
    }

    /// Processes a cache topology, if it is new and comes from a server of the current cluster.
    pub(crate) fn learn(&self, cache: &CacheState, topology: &CacheTopology, from: &Server) {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        if from.switches != self.clusters.switches()
            || cache.routing().is_some_and(|routing| routing.id() == topology.id)
        {
            return;
        }
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        let routing = Routing::new(topology, |address| self.server(&mut servers, address));
        drop(servers);
        let Some(routing) = routing else { return };
        tracing::debug!(cache = %cache.name, id = topology.id, servers = ?topology.servers, "topology");
        *cache.routing.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(routing));
        drop(caches);
        self.has_strangers.store(true, Ordering::Release);
    }

    /// Retires servers that are in no topology, if a server of a topology is usable: the addresses in
    /// topologies may be unreachable from this client.
    pub(crate) fn retire_unlisted_servers(&self) {
        if !self.has_strangers.load(Ordering::Acquire) {
            return;
        }
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let routings: Vec<_> = caches.values().filter_map(|cache| cache.routing()).collect();
        let named = |server: &Arc<Server>| {
            routings.iter().any(|routing| routing.servers().iter().any(|named| Arc::ptr_eq(named, server)))
        };
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        if !servers.iter().any(|server| named(server) && server.handle().is_some()) {
            return;
        }
        servers.retain(|server| {
            let stays = named(server);
            if !stays {
                server.retire();
            }
            stays
        });
        self.has_strangers.store(false, Ordering::Release);
    }
}
