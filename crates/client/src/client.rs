use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_encoding::{Encoding, Postcard, Raw};
use consort_hotrod::{Intelligence, ProtocolVersion, ServerAddress};
use consort_sasl::Mechanism;
use tokio::runtime::Handle;

use crate::cache::Cache;
use crate::client_state::{ClientState, Settings};
use crate::connection::credentials::Credentials;
use crate::connection::legacy;
use crate::connection::security::Security;
use crate::connection::state_machine::Traffic;
use crate::connection::stream::Tls;
use crate::counter_listeners::CounterListenerTable;
use crate::error::{ClientError, ConnectError, ConnectionError};
use crate::failover_clusters::{FailoverCluster, FailoverClusters};
use crate::limits::{SWITCH_AFTER, TIMEOUT};
use crate::options::CacheOptions;
use crate::server::Server;
use crate::uri::{self, ParsedUri};

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    servers: Vec<ServerAddress>,
    clusters: Vec<FailoverCluster>,
    switch_after: u32,
    settings: Settings,
    tls: Option<Tls>,
    credentials: Credentials,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        let settings = Settings { intelligence: Intelligence::Hash, version: None, timeout: TIMEOUT };
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
    /// Adds an initial server; topologies name the cluster's others.
    #[must_use]
    pub fn server(mut self, server: ServerAddress) -> Self {
        self.servers.push(server);
        self
    }

    /// Sets the only initial server, instead of those so far.
    #[must_use]
    pub fn only_server(mut self, server: ServerAddress) -> Self {
        self.servers = vec![server];
        self.clusters.clear();
        self
    }

    /// Sets how the client uses topologies. By default requests go to owners of keys; a basic client uses the initial servers
    /// only.
    #[must_use]
    pub const fn intelligence(mut self, intelligence: Intelligence) -> Self {
        self.settings.intelligence = intelligence;
        self
    }

    /// Forces a protocol version: 3.0 or later (with the feature `legacy`: 2.0). Default: the newest of both sides.
    #[must_use]
    pub const fn version(mut self, version: ProtocolVersion) -> Self {
        self.settings.version = Some(version);
        self
    }

    /// Sets the timeout of operations, including waits for room and servers; by default [`TIMEOUT`]. Handles of caches can have
    /// others ([`Cache::with_timeout`]).
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Uses TLS with all servers.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Authenticates as this user by the strongest common mechanism: SCRAM-SHA-512, -384, -256, and with TLS also PLAIN.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.credentials = self.credentials.with_user(name, password);
        self
    }

    /// Authenticates with this token (OAUTHBEARER); TLS only.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.credentials = self.credentials.with_token(token);
        self
    }

    /// Authenticates with this mechanism only. EXTERNAL uses the certificate of [`Tls::identity`]. PLAIN and OAUTHBEARER set here
    /// are also used without TLS, where others on the network path can read the credentials.
    #[must_use]
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.credentials = self.credentials.with_only(mechanism);
        self
    }

    /// Adds a failover cluster with some of its servers. The client tries them in this order when the current one is unreachable
    /// ([`ClientBuilder::switch_after`]). All share the credentials and certificates.
    #[must_use]
    pub fn cluster(mut self, name: &str, servers: impl IntoIterator<Item = ServerAddress>) -> Self {
        self.clusters.push(FailoverCluster::new(name, servers));
        self
    }

    /// Sets after how many failed attempts in a row to connect to each known server the client switches clusters; default 3.
    /// Attempts fail within 1 s if refused, after 5 s without response; an open connection's silence counts after 25 s.
    #[must_use]
    pub const fn switch_after(mut self, attempts: u32) -> Self {
        self.switch_after = attempts;
        self
    }

    /// Parses a URI as [`Client::connect`] does.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Uri`], or [`ConnectError::Tls`] for invalid files.
    pub fn from_uri(uri: &str) -> Result<Self, ConnectError> {
        let ParsedUri { servers, clusters, intelligence, version, credentials, tls } = uri::parse(uri)?;
        let default = Self::default();
        let intelligence = intelligence.unwrap_or(default.settings.intelligence);
        Ok(Self {
            servers,
            clusters,
            settings: Settings { intelligence, version, ..default.settings },
            tls,
            credentials,
            ..default
        })
    }

    /// Returns the initial servers.
    pub fn servers(&self) -> &[ServerAddress] {
        &self.servers
    }

    /// Returns whether TLS is used.
    pub const fn is_within_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects until one server is usable; tries the other clusters if none of the first is.
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
        let security = Security::new(self.tls, self.credentials)?;
        let runtime = Handle::current();
        let clusters = FailoverClusters::new(self.servers, self.clusters, self.switch_after)?;
        let inner = Arc::new(ClientState::new(self.settings, security, runtime, clusters));
        inner.connect().await?;
        inner.keep_cluster();
        Ok(Client { inner, counter_listeners: Arc::default() })
    }
}

/// A Hot Rod client, cheap to clone. Its connections close with the last clone and the last cache handle.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientState>,
    counter_listeners: Arc<CounterListenerTable>,
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

    /// Connects to `hotrod://[user:password@]host[:port][,host[:port]…][?name=value&…]` until one server is usable; `hotrods`
    /// uses TLS. Percent-encode characters of names and passwords other than letters and digits. Properties, named as in
    /// Infinispan's clients: `client_intelligence`, `protocol_version`, `sasl_mechanism`, `auth_username`, `auth_password`,
    /// `auth_token`, `trust_store_file_name` (default: the system's), `key_store_file_name` (certificate and key),
    /// `sni_host_name` ([`Tls::server_name`]), and `cluster.NAME` as `host[:port][;host[:port]…]` ([`ClientBuilder::cluster`]).
    /// Files are PEM. Consort adds `auth_password_file`, whose first line is the password.
    ///
    /// # Errors
    ///
    /// If no server is usable, or the URI is invalid.
    pub async fn connect(uri: &str) -> Result<Self, ConnectError> {
        ClientBuilder::from_uri(uri)?.connect().await
    }

    /// Returns a handle of a cache of serde values; without the cache, the first operation fails.
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
        let options = CacheOptions { timeout: self.inner.settings.timeout, ..CacheOptions::default() };
        Cache::new(self.inner.clone(), self.inner.cache(name), keys, values, options)
    }

    pub(crate) const fn inner(&self) -> &Arc<ClientState> {
        &self.inner
    }

    pub(crate) const fn counter_listeners(&self) -> &Arc<CounterListenerTable> {
        &self.counter_listeners
    }

    /// Returns the state of each known server of the current cluster.
    pub fn states(&self) -> Vec<ServerState> {
        let of = |server: &Arc<Server>| ServerState {
            address: server.address.clone(),
            is_connected: server.handle().is_some(),
            trouble: server.trouble(),
        };
        self.inner.all().iter().map(of).collect()
    }

    /// Returns the servers of a cache's topology, usable or not. Empty before the first response to a request for the cache, and for
    /// servers without topologies.
    pub fn servers_of(&self, cache: &str) -> Vec<ServerAddress> {
        let routing = self.inner.cache(cache).routing();
        let servers = routing.iter().flat_map(|routing| routing.servers());
        servers.map(|server| server.address.clone()).collect()
    }

    /// Returns the usable servers.
    pub fn servers(&self) -> Vec<String> {
        let servers = self.inner.all();
        servers.iter().filter(|server| server.handle().is_some()).map(ToString::to_string).collect()
    }

    /// Returns the current cluster's name; [`DEFAULT_CLUSTER`](crate::DEFAULT_CLUSTER) is that of the initial servers.
    pub fn cluster(&self) -> &str {
        self.inner.clusters.current_name()
    }

    /// Switches to a cluster ([`ClientBuilder::cluster`]) until it is unreachable. The previous one still answers requests in
    /// flight. Near caches are emptied. Listeners get a gap and register there, or end if the cache or counter does not exist.
    /// Iterations end with [`ClientError::IterationInterrupted`], values in chunks with [`ClientError::StreamLost`].
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCluster`]; an unreachable cluster shows with the first operation.
    pub fn switch_to_cluster(&self, name: &str) -> Result<(), ClientError> {
        let index = self.inner.clusters.index_of(name);
        self.inner.switch(index.ok_or_else(|| ClientError::NoSuchCluster(name.to_owned()))?);
        Ok(())
    }

    /// Switches to the cluster of the initial servers, as [`Client::switch_to_cluster`].
    pub fn switch_to_default_cluster(&self) {
        self.inner.switch(0);
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

    /// Closes all connections, and waits for that; operations in progress fail.
    pub async fn close(&self) {
        self.inner.close().await;
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
