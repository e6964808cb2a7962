//! The shared state of a client's handles: servers, connections and the caches' topologies.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use consort_hotrod::{CacheTopology, Intelligence, ProtocolVersion, ServerAddress, Text};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::clock::Clock;
use crate::connection::handle::ConnectionHandle;
use crate::connection::security::Security;
use crate::error::{ConnectError, ConnectionError};
use crate::failover_clusters::FailoverClusters;
use crate::near::NearCache;
use crate::routing::{Routing, in_turn};
use crate::server::Server;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) intelligence: Intelligence,
    pub(crate) version: Option<ProtocolVersion>,
    /// Of operations without a timeout of their own.
    pub(crate) timeout: Duration,
}

pub(crate) struct CacheState {
    pub(crate) name: Text,
    /// The near cache that all handles of this cache share while one exists.
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

pub(crate) struct ClientState {
    pub(crate) settings: Settings,
    security: Security,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    pub(crate) clusters: FailoverClusters,
    pub(crate) servers: RwLock<Vec<Arc<Server>>>,
    /// Its lock also serialises the processing of topologies.
    pub(crate) caches: Mutex<BTreeMap<String, Arc<CacheState>>>,
    tasks: Mutex<JoinSet<()>>,
    pub(crate) changed: Arc<Notify>,
    turn: AtomicUsize,
    /// Some servers are in no topology, and retire once a server of a topology is usable.
    pub(crate) has_strangers: AtomicBool,
    is_closed: AtomicBool,
}

impl ClientState {
    pub(crate) fn new(
        settings: Settings,
        security: Security,
        runtime: Handle,
        clusters: FailoverClusters,
    ) -> Self {
        Self {
            settings,
            security,
            clock: Clock::start(),
            runtime,
            clusters,
            servers: RwLock::default(),
            caches: Mutex::default(),
            tasks: Mutex::default(),
            changed: Arc::default(),
            turn: AtomicUsize::new(0),
            has_strangers: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let mut tasks = std::mem::take(&mut *self.tasks());
        tasks.shutdown().await;
        self.changed.notify_waiters();
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Server>> {
        self.servers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

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

    pub(crate) fn no_cache(&self) -> CacheState {
        CacheState::new(Text::EMPTY)
    }

    pub(crate) fn new_server(&self, address: &ServerAddress) -> Server {
        let (version, security) = (self.settings.version, self.security.clone());
        Server::new(address.clone(), self.clock, version, security, self.clusters.switches())
    }

    /// Starts connecting to a new server.
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

    /// Create the future before you inspect the servers.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    pub(crate) fn trouble(&self) -> Option<ConnectionError> {
        self.all().iter().find_map(|server| server.trouble())
    }

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

    /// Retires servers in no topology once a server of a topology is usable: the client may not reach the topologies' addresses.
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
