//! The caches of clients, the same on every member.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_cache::{
    CacheBuilder, CacheConfig, CacheError, CacheManager, CacheMode, Durability, HandoverTimeout,
    ManagerEvent, OperationError, RawCache, Segment,
};
use consort_hotrod::{CacheTopology, RequestHeader, ServerAddress, Status};
use futures_core::Stream;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::catalog::admin_error::{AdminError, check_cache_name};
use crate::catalog::aliases::Aliases;
use crate::catalog::cache_removal::{self, RemovalGuard};
use crate::catalog::client_topology::{self, Endpoint, Endpoints};
use crate::catalog::cluster_stats::ClusterStats;
use crate::catalog::cluster_stop::ClusterStop;
use crate::catalog::counters::{self, Counters};
use crate::catalog::data_directory::{self, Data};
use crate::catalog::definition::{self, Definition, DefinitionError};
use crate::catalog::entity_index::{self, EntityIndex};
use crate::catalog::failed_caches::FailedCaches;
use crate::catalog::rebalancing::SharedRebalancing;
use crate::catalog::registry::{Lifecycle, Registry};
use crate::catalog::schemas::Schemas;
use crate::catalog::served_cache::ServedCache;
use crate::catalog::{startup_log, store_directories};
use crate::events::directory::ListenerDirectory;
use crate::limits::{PENDING_CHANGES_MAX, REOPEN_INTERVAL, WITHDRAW_TIME_MAX};
use crate::media::{Encoding, Types};
use crate::memory::Memory;
use crate::memory::stream_budget::StreamBudget;
use crate::metrics::telemetry::Telemetry;
use crate::names::{SCHEMAS, is_internal};
use crate::security::Security;
use crate::transactions::{self, Transactions};

/// Definitions that outlive a full restart of the cluster.
const DEFINITIONS: &str = "___consort_caches";
const VOLATILE_DEFINITIONS: &str = "___consort_volatile_caches";

const SERVERS: &str = "___consort_servers";

/// Counts of requests, by server.
const STATISTICS: &str = "___consort_statistics";

/// Every server opens these when it starts.
pub(crate) const OWN: [&str; 7] =
    [DEFINITIONS, VOLATILE_DEFINITIONS, SCHEMAS, SERVERS, STATISTICS, counters::KEPT, counters::COUNTERS];

/// The pause after a failed read of the other servers' state.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfExists {
    Fail,
    Accept,
    /// The existing cache counts as created if its definition is the same.
    AcceptIfSame,
    /// The existing cache gets the new definition as far as possible.
    Change,
}

pub(crate) struct Caches {
    manager: CacheManager,
    endpoint: ServerAddress,
    security: Arc<Security>,
    register_transforms: RegisterTransforms,
    data: Option<Data>,
    pub(super) default_cache: Option<String>,
    being_removed: Mutex<BTreeSet<String>>,
    /// Held while a cache is closed and its files are removed.
    removing: tokio::sync::Mutex<()>,
    pub(crate) definitions: Registry,
    pub(crate) aliases: Aliases,
    pub(crate) schemas: Arc<ServedCache>,
    pub(crate) servers: RawCache,
    pub(crate) rebalancing: SharedRebalancing,
    pub(crate) stop: ClusterStop,
    pub(crate) counters: Counters,
    pub(crate) statistics: ClusterStats,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) memory: Memory,
    pub(crate) stream_budget: StreamBudget,
    pub(crate) listeners: ListenerDirectory,
    transactions: OnceCell<Arc<Transactions>>,
    open: RwLock<BTreeMap<String, Arc<ServedCache>>>,
    pub(crate) failed: FailedCaches,
    /// The number of changes so far, and the addresses for clients.
    endpoints: RwLock<(u64, Arc<Endpoints>)>,
    is_leaving: AtomicBool,
}

pub(crate) struct CachesSettings<'d> {
    pub(crate) endpoint: ServerAddress,
    pub(crate) security: Arc<Security>,
    pub(crate) data: Option<&'d Data>,
    /// The cache of requests that name none.
    pub(crate) default_cache: Option<String>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) memory: Memory,
    pub(crate) register_transforms: RegisterTransforms,
}

pub(crate) type RegisterTransforms = fn(CacheBuilder<'_>) -> CacheBuilder<'_>;

pub(crate) fn replicated_config(name: &str) -> CacheConfig {
    CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new(name) }
}

impl Caches {
    /// The log names servers for which this waits long.
    pub(crate) async fn open(
        manager: CacheManager,
        settings: CachesSettings<'_>,
    ) -> Result<Self, AdminError> {
        let opening = Self::open_all(manager.clone(), settings);
        startup_log::log_while_waiting(&manager, &OWN, opening).await
    }

    async fn open_all(manager: CacheManager, settings: CachesSettings<'_>) -> Result<Self, AdminError> {
        let CachesSettings {
            endpoint,
            security,
            data,
            default_cache,
            telemetry,
            memory,
            register_transforms,
        } = settings;
        // Definitions change rarely, so that each change can be written to disk: an acknowledged one survives a power
        // failure.
        let of = |name| (name, register_transforms(manager.open_with(replicated_config(name).into())));
        let persistent =
            |(name, builder), durability| data_directory::open(&manager, name, builder, data, durability);
        let definitions = persistent(of(DEFINITIONS), Durability::Disk);
        let schemas = persistent(of(SCHEMAS), Durability::Disk);
        let counted = persistent(of(counters::KEPT), Durability::Process);
        let (definitions, schemas, counted) = tokio::try_join!(definitions, schemas, counted)?;
        let schemas = ServedCache::of(&manager, schemas, Encoding::texts());
        let schemas = Arc::new(ServedCache { schemas: Some(Schemas::default()), ..schemas });
        let volatile = manager.open(replicated_config(VOLATILE_DEFINITIONS)).essential().raw().await?;
        let definitions = Registry::new(definitions, volatile);
        let servers = manager.open(replicated_config(SERVERS)).essential().raw().await?;
        let statistics = manager.open(replicated_config(STATISTICS)).raw().await?;
        let volatile = register_transforms(manager.open_with(counters::config().into())).raw().await?;
        let volatile = Arc::new(ServedCache::of(&manager, volatile, Encoding::default()));
        let counters = Counters::new(volatile, counted, data.is_some());
        let caches = Self {
            rebalancing: SharedRebalancing::new(servers.clone(), manager.clone()),
            stop: ClusterStop::new(servers.clone(), manager.clone()),
            manager,
            endpoint,
            security,
            register_transforms,
            data: data.cloned(),
            default_cache,
            being_removed: Mutex::default(),
            removing: tokio::sync::Mutex::default(),
            counters,
            statistics: ClusterStats::new(statistics),
            telemetry,
            definitions,
            aliases: Aliases::default(),
            schemas,
            servers,
            stream_budget: StreamBudget::within(&memory),
            memory,
            listeners: ListenerDirectory::default(),
            transactions: OnceCell::new(),
            open: RwLock::default(),
            failed: FailedCaches::default(),
            endpoints: RwLock::new((0, Arc::default())),
            is_leaving: AtomicBool::new(false),
        };
        // Servers may have gone since this server was added to the topology. Opening continues when they are back.
        while let Err(error) = caches.reconcile().await {
            if !matches!(error, AdminError::Cache(CacheError::Operation(OperationError::Degraded { .. }))) {
                return Err(error);
            }
            sleep(RETRY_AFTER).await;
        }
        if let Some(data) = data {
            caches.log_orphaned_directories(data).await;
        }
        Ok(caches)
    }

    /// While a definition cannot be read, its cache's directory is unknown, and nothing is logged.
    async fn log_orphaned_directories(&self, data: &Data) {
        let mut known = BTreeSet::new();
        let Ok(defined) = self.definitions.entries().await else { return };
        for (name, text) in defined {
            let name = String::from_utf8_lossy(&name);
            if is_internal(&name) {
                continue;
            }
            match self.directory(&name, &text) {
                Ok(directory) => known.extend(directory),
                Err(_) => return,
            }
        }
        store_directories::warn_orphaned_directories(data, known).await;
    }

    fn directory(&self, name: &str, text: &Bytes) -> Result<Option<PathBuf>, DefinitionError> {
        let (definition, place) = definition::from_stored(name, &String::from_utf8_lossy(text))?;
        let place = place.filter(|_| definition.store.is_some());
        Ok(place
            .zip(self.data.as_ref())
            .map(|(place, data)| store_directories::directory(&data.directory, name, &place)))
    }

    fn own_endpoint(&self) -> Endpoint {
        Endpoint { address: self.endpoint.clone(), is_leaving: self.is_leaving.load(Ordering::Acquire) }
    }

    async fn publish_endpoint(&self) -> Result<Endpoint, CacheError> {
        let own = self.own_endpoint();
        let member = self.manager.address().to_string();
        self.servers.put(member.as_bytes(), own.to_text().as_bytes()).await?;
        Ok(own)
    }

    /// Removes this server from all clients' topologies; it still executes requests. Returns whether there are other servers.
    pub(crate) async fn withdraw(&self) -> bool {
        self.is_leaving.store(true, Ordering::Release);
        let withdrawing = async {
            self.publish_endpoint().await?;
            self.refresh_endpoints().await
        };
        match timeout(WITHDRAW_TIME_MAX, withdrawing).await {
            Ok(Ok(endpoints)) => endpoints.values().any(|endpoint| !endpoint.is_leaving),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot announce the end of this server to clients of other servers");
                false
            }
            Err(_) => {
                tracing::warn!(
                    "the end of this server may be unknown to clients of other servers: these servers did not acknowledge it \
                     within {WITHDRAW_TIME_MAX:?}"
                );
                false
            }
        }
    }

    pub(crate) const fn manager(&self) -> &CacheManager {
        &self.manager
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) const fn has_data(&self) -> bool {
        self.data.is_some()
    }

    pub(crate) fn all(&self) -> Vec<(String, Arc<ServedCache>)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|(name, served)| (name.clone(), served.clone())).collect()
    }

    pub(crate) fn with_stores(&self) -> Vec<String> {
        let own = OWN.iter().map(|name| (*name).to_owned());
        let others = self.all().into_iter().filter(|(_, served)| served.directory.is_some());
        own.chain(others.map(|(name, _)| name)).collect()
    }

    pub(crate) fn failing_stores(&self) -> BTreeMap<String, String> {
        let failing = |name: String| Some((name.clone(), self.manager.store_failure(&name)?));
        self.with_stores().into_iter().filter_map(failing).collect()
    }

    /// Clients reach one internal cache: that of schemas, which Infinispan's clients read and write. An empty name means the
    /// default cache.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<ServedCache>> {
        let name = if name.is_empty() { self.default_cache.as_deref()? } else { name };
        self.get_open(name).or_else(|| match name {
            SCHEMAS => Some(self.schemas.clone()),
            name if is_internal(name) => None,
            alias => self.get_open(&self.alias_here(alias)?),
        })
    }

    pub(crate) fn note_error(&self, header: &RequestHeader, status: Status) {
        match self.get(header.cache.as_str()).filter(|served| !is_internal(served.cache.name())) {
            Some(served) => served.stats.errors.note(status),
            None => self.telemetry.errors_without_cache.note(status),
        }
    }

    fn get_open(&self, name: &str) -> Option<Arc<ServedCache>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Opens the cache here first if another server has just created it.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Arc<ServedCache>>, AdminError> {
        if let Some(served) = self.get(name) {
            return Ok(Some(served));
        }
        // The keys of aliases and templates among the definitions have such names. A client gets the response for an
        // unknown cache.
        if is_internal(name) {
            return Ok(None);
        }
        if let Some(text) = self.definitions.get(name.as_bytes()).await? {
            return self.serve_defined(name, &text).await;
        }
        let Some(name) = self.alias(name).await? else { return Ok(None) };
        if let Some(served) = self.get_open(&name) {
            return Ok(Some(served));
        }
        let Some(text) = self.definitions.get(name.as_bytes()).await? else { return Ok(None) };
        self.serve_defined(&name, &text).await
    }

    /// `None` if the definition is gone by now: a concurrent removal closes only caches that are open.
    async fn serve_defined(
        &self,
        name: &str,
        definition: &Bytes,
    ) -> Result<Option<Arc<ServedCache>>, AdminError> {
        if let Some(error) = self.failed.recent(Instant::now(), name, definition) {
            return Err(AdminError::NotOpened { cache: name.to_owned(), error });
        }
        let served = match self.serve(name, definition).await {
            Ok(served) => served,
            Err(error) => {
                let (directory, error) = (self.directory(name, definition), error.to_string());
                let directory = directory.ok().flatten();
                self.failed.note(Instant::now(), name, definition, directory.as_deref(), &error);
                return Err(AdminError::NotOpened { cache: name.to_owned(), error });
            }
        };
        if self.definitions.get(name.as_bytes()).await?.is_none() {
            self.close(name).await?;
            return Ok(None);
        }
        Ok(Some(served))
    }

    async fn serve(&self, name: &str, text: &Bytes) -> Result<Arc<ServedCache>, AdminError> {
        let (definition, place) = definition::from_stored(name, &String::from_utf8_lossy(text))?;
        let transactions =
            if definition.is_transactional { Some(self.transactions().await?.clone()) } else { None };
        let mut builder = (self.register_transforms)(self.manager.open_with(definition.settings()));
        if let Some(indexing) = &definition.indexing {
            builder = builder.indexed_fields(entity_index::fields_for(&*self.types().await, indexing));
        }
        let (cache, directory) = match (&definition.store, place) {
            (Some(store), Some(place)) => {
                let data = self.data.as_ref().ok_or(AdminError::NoData)?;
                let directory = store_directories::directory(&data.directory, name, &place);
                let builder = builder.persistence(store.apply(data.store(&directory)));
                let cache = data_directory::open_with_all(&self.manager, name, builder, Some(data)).await?;
                (cache, Some(directory))
            }
            _ => (builder.raw().await?, None),
        };
        let served = ServedCache::of(&self.manager, cache, definition.encoding);
        let index = definition.indexing.map(|indexing| EntityIndex::new(&indexing, served.cache.index()));
        let served =
            ServedCache { transactions, index, definition: RwLock::new(text.clone()), directory, ..served };
        let served = {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            open.entry(name.to_owned()).or_insert_with(|| Arc::new(served)).clone()
        };
        // Schemas may have changed while the cache was opened.
        if served.index.is_some() {
            served.refresh_index(&*self.types().await, false);
        }
        self.failed.forget(name, "is open now");
        Ok(served)
    }

    pub(crate) async fn transactions(&self) -> Result<&Arc<Transactions>, AdminError> {
        let open = async || Ok(Arc::new(Transactions::open(&self.manager).await?));
        self.transactions.get_or_try_init(open).await
    }

    pub(crate) fn transactions_if_open(&self) -> Option<&Arc<Transactions>> {
        self.transactions.get()
    }

    /// `None` if this server is the only member of the cache.
    pub(crate) fn own_segments(&self, served: &ServedCache) -> Option<Arc<[Segment]>> {
        let own = self.manager.address();
        served.with_topology(|topology| topology.read_owners().segments_of(own).collect())
    }

    pub(crate) fn members_if_first(&self) -> Option<Vec<String>> {
        let view = self.manager.view()?;
        let is_first = view.coordinator() == Some(self.manager.address());
        is_first.then(|| view.members().iter().map(ToString::to_string).collect())
    }

    pub(crate) async fn types(&self) -> Arc<Types> {
        match &self.schemas.schemas {
            Some(schemas) => schemas.types(&self.schemas.cache).await,
            None => Arc::default(),
        }
    }

    /// Creates a cache here at once, and on the other servers soon. Returns whether it is new.
    pub(crate) async fn create(
        &self,
        definition: &Definition,
        if_there: IfExists,
        keeping: Lifecycle,
    ) -> Result<bool, AdminError> {
        let name = &*definition.config.name;
        check_cache_name(name)?;
        if definition.store.is_some() && self.data.is_none() {
            return Err(AdminError::NoData);
        }
        if definition.store.is_some() && keeping == Lifecycle::Volatile {
            return Err(AdminError::VolatileStore);
        }
        if !self.has_room_for_definition().await? {
            return Err(AdminError::TooMany);
        }
        if self.alias(name).await?.is_some() {
            // The name has another definition.
            return match if_there {
                IfExists::Accept => Ok(false),
                _ => Err(AdminError::Exists(name.to_owned())),
            };
        }
        let aliases = definition.aliases.iter().flatten();
        self.check_aliases(name, aliases).await?;
        let place = definition.store.as_ref().map(|_| store_directories::new());
        let value = Bytes::from(definition::to_stored(definition, place.as_deref()));
        let key = Bytes::copy_from_slice(name.as_bytes());
        let is_new = self.definitions.add(&key, value.clone(), keeping).await?;
        if !is_new {
            match if_there {
                IfExists::Fail => return Err(AdminError::Exists(name.to_owned())),
                IfExists::AcceptIfSame if self.differs(definition).await? => {
                    return Err(AdminError::ConfigMismatch(name.to_owned()));
                }
                IfExists::Change => self.change(name, |_| Ok(definition.clone())).await?,
                IfExists::Accept | IfExists::AcceptIfSame => {}
            }
            return self.find(name).await.map(|_| false);
        }
        let opened = self.serve(name, &value).await;
        if opened.is_err() {
            self.definitions.remove(name.as_bytes()).await?;
            if let (Some(data), Some(place)) = (&self.data, &place) {
                store_directories::remove(store_directories::directory(&data.directory, name, place)).await;
            }
        }
        opened?;
        if let Some(aliases) = &definition.aliases {
            self.set_aliases(name, aliases).await?;
        }
        Ok(true)
    }

    pub(crate) async fn change(
        &self,
        name: &str,
        to: impl Fn(&Definition) -> Result<Definition, DefinitionError>,
    ) -> Result<(), AdminError> {
        if is_internal(name) {
            return Err(AdminError::Reserved(name.to_owned()));
        }
        let target = self.alias(name).await?;
        let name = target.as_deref().unwrap_or(name);
        let none = || AdminError::None(name.to_owned());
        // A repetition means that another change of this definition has succeeded.
        loop {
            let text = self.definitions.get_linearizable(name.as_bytes()).await?.ok_or_else(none)?;
            let (before, place) = definition::from_stored(name, &String::from_utf8_lossy(&text))?;
            let after = to(&before)?;
            definition::check_alteration(&before, &after)?;
            let aliases = after.aliases.iter().flatten();
            self.check_aliases(name, aliases).await?;
            let changed = Bytes::from(definition::to_stored(&after, place.as_deref()));
            if changed == text || self.definitions.replace(name.as_bytes(), &text, &changed).await? {
                if let Some(served) = self.get_open(name) {
                    served.apply_definition(&changed);
                }
                return match &after.aliases {
                    Some(aliases) => self.set_aliases(name, aliases).await,
                    None => Ok(()),
                };
            }
        }
    }

    pub(crate) async fn differs(&self, definition: &Definition) -> Result<bool, AdminError> {
        let name = &*definition.config.name;
        let Some(text) = self.definitions.get_linearizable(name.as_bytes()).await? else { return Ok(false) };
        // Aliases may have moved to other caches since.
        let without = Definition { aliases: None, ..definition.clone() };
        Ok(definition::from_stored(name, &String::from_utf8_lossy(&text))?.0 != without)
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), AdminError> {
        if is_internal(name) {
            return Err(AdminError::Reserved(name.to_owned()));
        }
        let has_files = self.has_files(name);
        if self.definitions.get(name.as_bytes()).await?.is_some() {
            self.set_aliases(name, &BTreeSet::new()).await?;
        }
        let being_removed = RemovalGuard::begin(&self.being_removed, name);
        // Of several clients that remove a cache, one waits until no other member has it, and only then closes it here: a
        // cache that is created afterwards finds none of its name. The others close it at once.
        if self.definitions.remove(name.as_bytes()).await?
            && let Some(served) = self.get(name)
        {
            cache_removal::wait_until_closed_elsewhere(&self.manager, &served, name).await;
        }
        drop(being_removed);
        self.rebalancing.forget(name).await?;
        self.close(name).await?;
        if has_files {
            // The task that follows the definitions may already close it.
            drop(self.removing.lock().await);
        }
        Ok(())
    }

    fn is_being_removed(&self, name: &str) -> bool {
        self.being_removed.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    fn has_files(&self, name: &str) -> bool {
        self.get_open(name).is_some_and(|served| served.directory.is_some())
    }

    async fn close(&self, name: &str) -> Result<(), AdminError> {
        let _removing = if self.has_files(name) { Some(self.removing.lock().await) } else { None };
        let served = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.manager.leave(name).await?;
        if let Some(directory) = served.and_then(|served| served.directory.clone()) {
            store_directories::remove(directory).await;
        }
        Ok(())
    }

    /// The names for clients: first the internal cache that they reach.
    pub(crate) fn names_among(names: &[Bytes]) -> Vec<String> {
        let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let names = names.filter(|name| !is_internal(name));
        std::iter::once(SCHEMAS.to_owned()).chain(names).collect()
    }

    pub(crate) fn topology_for(
        &self,
        served: &ServedCache,
        header: &RequestHeader,
    ) -> Option<Arc<CacheTopology>> {
        let topology = client_topology::uses_topology(header).then(|| self.topology_of(served))?;
        topology.filter(|topology| client_topology::differs(topology, header))
    }

    /// `None` for a cache that only this server has.
    pub(crate) fn topology_of(&self, served: &ServedCache) -> Option<Arc<CacheTopology>> {
        let installed = served.topology.as_ref()?.borrow();
        let installed = installed.as_ref()?;
        let (generation, endpoints) = self.endpoints.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut last = served.sent_topology.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((of, with, topology)) if (*of, *with) == (installed.id, generation) => {
                Some(topology.clone())
            }
            _ => {
                let topology = Arc::new(client_topology::client_topology(installed, &endpoints)?);
                *last = Some((installed.id, generation, topology.clone()));
                Some(topology)
            }
        }
    }

    /// Every member has the data that this reads, so that it costs no message.
    pub(crate) async fn follow(&self) {
        let mut members = self.manager.events();
        let listening = async || {
            let [persistent, volatile] = self.definitions.listen(PENDING_CHANGES_MAX).await?;
            let servers = self.servers.listen().events_max(PENDING_CHANGES_MAX).start().await?;
            let schemas = self.schemas.cache.listen().events_max(PENDING_CHANGES_MAX).start().await?;
            Ok::<_, CacheError>([persistent, volatile, servers, schemas])
        };
        let mut listening = match listening().await {
            Ok(listening) => listening,
            Err(error) => return tracing::error!(%error, "cannot follow the changes of other servers"),
        };
        let mut has_changed = move |cx: &mut Context<'_>| {
            let mut has_changed = Poll::Pending;
            while let Poll::Ready(event) = Pin::new(&mut members).poll_next(cx) {
                match event {
                    None => return Poll::Ready(false),
                    // With the topology of an internal cache, entries that the other servers had before arrive here, too.
                    Some(ManagerEvent::Topology { cache, .. }) if !is_internal(&cache) => {}
                    Some(_) => has_changed = Poll::Ready(true),
                }
            }
            for events in &mut listening {
                while let Poll::Ready(event) = Pin::new(&mut *events).poll_next(cx) {
                    has_changed = Poll::Ready(matches!(event, Some(Ok(_))));
                    if has_changed == Poll::Ready(false) {
                        return has_changed;
                    }
                }
            }
            has_changed
        };
        loop {
            if let Some(schemas) = &self.schemas.schemas {
                schemas.note_change();
            }
            let reconciled = self.reconcile().await;
            let indexed = self.all().into_iter().filter(|(_, served)| served.index.is_some());
            let indexed: Vec<_> = indexed.collect();
            if !indexed.is_empty() {
                let types = self.types().await;
                indexed.iter().for_each(|(_, served)| drop(served.refresh_index(&types, false)));
            }
            let changed = poll_fn(&mut has_changed);
            let continues = match reconciled {
                Ok(()) if self.failed.len() > 0 => timeout(REOPEN_INTERVAL, changed).await.unwrap_or(true),
                Ok(()) => changed.await,
                Err(error) => {
                    tracing::debug!(%error, "cannot read the definitions of other servers");
                    timeout(RETRY_AFTER, changed).await.unwrap_or(true)
                }
            };
            if !continues {
                return;
            }
        }
    }

    /// Includes servers that have just joined.
    pub(crate) async fn servers(&self) -> Result<Endpoints, CacheError> {
        let (mut entries, mut endpoints) = (self.servers.entries(), Endpoints::new());
        while let Some((member, at)) = entries.next().await.transpose()? {
            let (member, at) = (String::from_utf8_lossy(&member).into_owned(), String::from_utf8_lossy(&at));
            if let Some(endpoint) = Endpoint::from_text(&at) {
                endpoints.insert(member, endpoint);
            }
        }
        Ok(endpoints)
    }

    async fn refresh_endpoints(&self) -> Result<Arc<Endpoints>, CacheError> {
        let mut endpoints = self.servers().await?;
        self.remove_departed_endpoints(&endpoints).await?;
        // Another partition of the cluster may have removed this server's address.
        let own = self.manager.address().to_string();
        if let Entry::Vacant(vacant) = endpoints.entry(own) {
            vacant.insert(self.publish_endpoint().await?);
        }
        let mut known = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        if *known.1 != endpoints {
            *known = (known.0 + 1, Arc::new(endpoints));
        }
        Ok(known.1.clone())
    }

    async fn reconcile(&self) -> Result<(), AdminError> {
        self.refresh_endpoints().await?;
        self.compare_requirements().await?;
        self.share_secret().await?;
        let own = OWN.iter().chain(&transactions::CACHES).copied();
        self.rebalancing.apply(own, self.members_if_first().is_some(), &self.definitions).await?;
        self.stop.apply(self.members_if_first()).await?;
        let age = self.aliases.age();
        let defined = self.definitions.entries().await?.into_iter();
        let mut defined: BTreeMap<String, Bytes> =
            defined.map(|(name, text)| (String::from_utf8_lossy(&name).into_owned(), text)).collect();
        self.refresh_aliases(&defined, age).await?;
        defined.retain(|name, _| !is_internal(name));
        for (name, served) in self.all() {
            if defined.get(&name) == Some(&served.definition()) || self.is_being_removed(&name) {
                continue;
            }
            // The cache may have been defined after the iteration had passed its key. With another definition it was
            // recreated or changed.
            let is_as_it_is = |text: &Bytes| *text == served.definition() || served.apply_definition(text);
            if !self.definitions.get(name.as_bytes()).await?.as_ref().is_some_and(is_as_it_is) {
                self.close(&name).await?;
            }
        }
        let is_open = |name: &String| self.get_open(name).is_some();
        for (name, text) in defined.iter().filter(|(name, _)| !is_open(name)) {
            match self.serve_defined(name, text).await {
                // The failure is already logged, and the health names the cache.
                Ok(_) | Err(AdminError::NotOpened { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.failed.retain(|name| defined.contains_key(name));
        Ok(())
    }

    async fn remove_departed_endpoints(&self, endpoints: &Endpoints) -> Result<(), CacheError> {
        let Some(members) = self.members_if_first() else { return Ok(()) };
        for member in endpoints.keys().filter(|member| !members.contains(member)) {
            self.servers.remove(member.as_bytes()).await?;
        }
        Ok(())
    }

    /// Hands over entries that only this member has, unless all servers stop, and leaves the cluster.
    pub(crate) async fn end(&self) -> Result<(), HandoverTimeout> {
        // Clients use the topologies of the other servers meanwhile, without this server. The first member removes its
        // address.
        if !self.is_leaving.load(Ordering::Acquire) {
            self.withdraw().await;
        }
        // Until here the clients of this server had to authenticate. If the removal fails, the first of the other members
        // does it.
        let _ = timeout(WITHDRAW_TIME_MAX, self.withdraw_requirement()).await;
        match self.manager.clone().close().await {
            Err(HandoverTimeout { cache, after }) if self.stop.is_agreed() => {
                tracing::warn!(%cache, ?after, "not all servers have stopped in time; the entries of this server are in its store, if the cache has one");
                Ok(())
            }
            closed => closed,
        }
    }
}
