use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use consort_channel::{Address, Channel, ChannelBuilder, PhysAddr, View};
use consort_conf::{ConfigError, Variables};
use consort_grid::{
    Availability, CacheConfig, CacheId, CacheMember, CapacityFactor, Container, ContainerSettings, Counters,
    Flags, IndexedFields, Location, MemoryBound, MergeFn, Node, Progress, Rebalancing, ResponseLoad,
    StoreSettings, TRANSFER_BUDGET, Topology,
};
use consort_group::Time;
use consort_memory::ProcessMemory;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use consort_store::Stats as StoreStats;

use crate::cache::{Cache, RawCache};
use crate::encoded::LockedWrites;
use crate::error::{HandoverTimeout, ManagerError, OpenError, StoreFault};
use crate::file::{self, CacheSettings, ManagerFile};
use crate::functions::Functions;
use crate::handler::{GridHandler, Traffic};
use crate::manager_events::ManagerEvents;
use crate::open_cache::{CachePhase, OpenCache};
use crate::options::CacheOptions;
use crate::persistence::Persistence;
use crate::store_driver::StoreDriver;
use crate::watched_store::{StoreHealth, StoreWatch};
use consort_encoding::{Encoding, Postcard, Raw};

/// The default wait for a cache's first topology covers the replacement of a coordinator that crashes
/// meanwhile.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long closing waits for operations and for the transfer of this member's data: 1 GB at little more than
/// 10 MB/s.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(90);

/// How long closing waits for unreachable owners that lack some of this member's data, if the view has no
/// other member: a partition may heal just then, and the data would be lost. Operators that stop containers
/// have 10 s.
pub const LEAVE_DEGRADED_TIMEOUT: Duration = Duration::from_secs(8);

/// A builder of a manager.
pub struct ManagerBuilder {
    channel: ChannelBuilder,
    location: Location,
    transfer_budget: u32,
    memory: Option<ProcessMemory>,
    file: Option<Arc<ManagerFile>>,
}

impl ManagerBuilder {
    /// Sets the logical name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.channel = self.channel.name(name);
        self
    }

    /// Sets this member's location. A segment's owners have different ones if possible.
    #[must_use]
    pub fn location(mut self, location: Location) -> Self {
        self.location = location;
        self
    }

    /// Sets the bytes of segments in transfer to this member at a time, per cache: default and maximum 1 MiB
    /// ([`TRANSFER_BUDGET`]). Less leaves more of a slow network to calls, and makes a rebalance longer.
    #[must_use]
    pub fn transfer_budget(mut self, bytes: u32) -> Self {
        self.transfer_budget = bytes;
        self
    }

    /// Limits this process's memory, as [`watch_memory`](crate::watch_memory) measures it; unlimited by
    /// default. Writes that need more fail with
    /// [`OperationError::NoMemory`](crate::OperationError::NoMemory); reads and removals go on. All managers
    /// of a process must have the same.
    #[must_use]
    pub fn process_memory(mut self, memory: ProcessMemory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Joins the cluster that the file names ([`CacheManager::from_file`]).
    ///
    /// # Errors
    ///
    /// [`ManagerError`]; no resource stays open.
    pub async fn start(self) -> Result<CacheManager, ManagerError> {
        let cluster = self.file.as_ref().and_then(|file| file.cluster.clone());
        self.connect(&cluster.ok_or(ManagerError::NoCluster)?).await
    }

    /// Opens the channel and joins the cluster.
    ///
    /// # Errors
    ///
    /// [`ManagerError`]; no resource stays open.
    pub async fn connect(self, cluster: &str) -> Result<CacheManager, ManagerError> {
        let handler = Arc::new(GridHandler::new(self.transfer_budget, self.memory));
        handler.workers.serve(&handler);
        let channel = self.channel.up_handler(handler.clone()).connect(cluster).await?;
        let (location, file) = (self.location, self.file);
        Ok(CacheManager {
            member: Arc::new(Member { handler, channel, location, file, locked_writes: OnceCell::new() }),
        })
    }
}

struct Member {
    handler: Arc<GridHandler>,
    channel: Channel,
    location: Location,
    file: Option<Arc<ManagerFile>>,
    locked_writes: OnceCell<Arc<dyn LockedWrites>>,
}

/// A member of a grid, cheap to clone. If the last clone is dropped without [`CacheManager::close`], the
/// member leaves without handing over its data, as in a crash.
#[derive(Clone)]
pub struct CacheManager {
    member: Arc<Member>,
}

impl CacheManager {
    pub(crate) fn handler(&self) -> &GridHandler {
        &self.member.handler
    }

    pub(crate) fn shared_handler(&self) -> Arc<GridHandler> {
        self.member.handler.clone()
    }

    pub(crate) fn locked_writes(&self) -> &OnceCell<Arc<dyn LockedWrites>> {
        &self.member.locked_writes
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.member.channel
    }

    pub(crate) fn clock(&self) -> impl Fn() -> Time + Send + Sync + use<> {
        self.member.handler.clock()
    }
}

impl fmt::Debug for CacheManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "manager on {:?}", self.member.channel)
    }
}

impl CacheManager {
    /// Creates a manager from a file with cache settings (see `crates/cache/examples/caches.xml`) or a channel's configuration,
    /// which may be built-in (`tcp.xml`, `udp.xml`, …). Variables come from the environment.
    ///
    /// # Errors
    ///
    /// If the configuration cannot be read or has an unknown name.
    pub fn from_file(name: &str) -> Result<ManagerBuilder, ConfigError> {
        Self::from_file_with(name, &Variables::from_env())
    }

    /// Like [`CacheManager::from_file`], with other variables.
    ///
    /// # Errors
    ///
    /// As [`CacheManager::from_file`].
    pub fn from_file_with(name: &str, variables: &Variables) -> Result<ManagerBuilder, ConfigError> {
        let text = std::fs::read_to_string(name).unwrap_or_default();
        // The channel reports a file that is missing or not a manager's.
        if consort_conf::root_name(&text).as_deref() != Some(file::ROOT) {
            return Channel::from_file_with(name, variables).map(Self::from_channel);
        }
        let file = ManagerFile::load(Path::new(name), variables)?;
        let mut builder = Self::from_channel(Channel::from_file_with(&file.stack, variables)?);
        if let Some(name) = &file.name {
            builder = builder.name(name);
        }
        builder.location = file.location.clone();
        builder.transfer_budget = file.transfer_budget;
        builder.file = Some(Arc::new(file));
        Ok(builder)
    }

    /// Creates a manager over a channel, which it owns.
    pub fn from_channel(channel: ChannelBuilder) -> ManagerBuilder {
        ManagerBuilder {
            channel,
            location: Location::default(),
            transfer_budget: TRANSFER_BUDGET,
            memory: None,
            file: None,
        }
    }

    /// Returns this member's address.
    pub fn address(&self) -> &Address {
        self.member.channel.address()
    }

    /// Returns this member's name.
    pub fn name(&self) -> &str {
        self.member.channel.name()
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        self.member.channel.cluster()
    }

    /// Returns a member's name, or its address if unknown.
    pub fn name_of(&self, member: &Address) -> String {
        self.member.channel.name_of(member)
    }

    /// Returns a member with its name, as errors name members.
    pub fn member(&self, address: &Address) -> consort_channel::Member {
        self.member.channel.member(address)
    }

    /// Returns the address at which others reach this member.
    pub fn physical_address(&self) -> PhysAddr {
        self.member.channel.physical_address()
    }

    /// Returns the view in JGroups' form: `[A|1] (2) [A, B]`.
    pub fn view_text(&self) -> String {
        self.member.channel.view_text()
    }

    /// Returns the view's members that have missed heartbeats and are not suspected yet ([`ManagerEvent::Silent`]): they may
    /// hang, or be cut off. Needs a stack with FD_ALL3.
    ///
    /// [`ManagerEvent::Silent`]: crate::ManagerEvent::Silent
    pub fn silent(&self) -> Vec<Address> {
        self.member.handler.silent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the view.
    pub fn view(&self) -> Option<View> {
        self.member.channel.view()
    }

    /// Returns a receiver of the view's changes.
    pub fn watch_view(&self) -> watch::Receiver<Option<View>> {
        self.member.channel.watch_view()
    }

    /// Returns a receiver of a cache's topologies, if it is open here.
    pub fn watch_topology(&self, cache: &str) -> Option<watch::Receiver<Option<Topology>>> {
        Some(self.opened(cache)?.topology.subscribe())
    }

    /// Returns the events from now on.
    pub fn events(&self) -> ManagerEvents {
        self.member.handler.manager_listeners.add()
    }

    /// Returns the progress of a rebalance here.
    pub fn rebalance_progress(&self, cache: &str) -> Progress {
        let id = CacheId::of(cache);
        self.member.handler.with_node(|node, _| node.stats().progress(id)).unwrap_or_default()
    }

    /// Returns this process's memory if limited.
    pub fn process_memory(&self) -> Option<&ProcessMemory> {
        self.member.handler.memory.as_ref()
    }

    /// Returns the other members short of memory: they refuse writes to their segments.
    pub fn short_members(&self) -> Vec<Address> {
        let short =
            |node: &mut Node, _| node.stats().short_members().map(|(member, _)| member.clone()).collect();
        self.member.handler.with_node(short).unwrap_or_default()
    }

    /// Returns the counts of unusual events.
    pub fn counters(&self) -> Counters {
        self.member.handler.with_node(|node, _| node.stats().counters()).unwrap_or_default()
    }

    /// Returns the load of values in transfer.
    pub fn response_load(&self) -> ResponseLoad {
        self.member.handler.with_node(|node, _| node.stats().response_load()).unwrap_or_default()
    }

    /// Returns the bytes of events, of all caches, that wait here for listeners' readers. Events of changes take up to twice
    /// [`LISTENERS_BYTES_MAX`](consort_grid::LISTENERS_BYTES_MAX) and one event; a listener that reads the present entries adds
    /// one batch.
    pub fn waiting_event_bytes(&self) -> u64 {
        self.member.handler.with_node(|node, _| node.stats().waiting_event_bytes()).unwrap_or_default()
    }

    /// Returns the traffic with other members.
    pub fn traffic(&self) -> Traffic {
        self.member.handler.state().traffic
    }

    /// Makes a degraded cache available with the remaining data.
    pub fn make_available(&self, cache: &str) {
        let id = CacheId::of(cache);
        self.member.handler.with_node(|node, now| node.make_available(now, id));
    }

    /// Sets whether the owners of caches are balanced while this member is the coordinator; the opposite applies to the caches
    /// named. All members should have the same setting. In a cache that is not balanced, members that join own no segments, and
    /// the copies of members that are lost or leave are not replaced: the crash of a segment's last owner then loses its entries.
    pub fn set_rebalancing<'a>(&self, is_enabled: bool, except: impl IntoIterator<Item = &'a str>) {
        let exceptions = except.into_iter().map(CacheId::of).collect();
        let rebalancing = Rebalancing { is_disabled: !is_enabled, exceptions };
        self.member.handler.with_node(|node, now| node.set_rebalancing(now, rebalancing));
    }

    /// Sets whether all members are about to leave. While it is set and this member is the coordinator, no entries are moved:
    /// [`close`](Self::close) and [`leave`](Self::leave) of the members wait until all reachable members of the cache leave. Then each
    /// member's store keeps the entries that the member owned, and the cache needs all of them at its restart. Set it on all members
    /// before the first one leaves, because each may become the coordinator. The copies of a member that is lost meanwhile are not
    /// replaced.
    pub fn set_cluster_stopping(&self, is_stopping: bool) {
        self.member.handler.with_node(|node, now| node.set_cluster_stopping(now, is_stopping));
    }

    /// Registers a [`MergePolicy::Custom`](consort_grid::MergePolicy) here, before its caches are opened.
    pub fn register_merge(&self, name: &str, merge: Arc<MergeFn>) {
        self.member.handler.with_node(|node, _| node.register_merge(name, merge));
    }

    fn opened(&self, cache: &str) -> Option<Arc<OpenCache>> {
        let opened = self.member.handler.caches().get(&CacheId::of(cache)).cloned()?;
        (*opened.config.name == *cache).then_some(opened)
    }

    /// Opens a cache of serde values with its settings in the manager's file; without a file, with the
    /// default ones ([`CacheConfig::new`]). Returns a cache that is already open.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; the cluster's cache is not changed.
    pub async fn cache<K, V>(&self, name: &str) -> Result<Cache<K, V>, OpenError> {
        self.named(name)?.cache().await
    }

    /// Returns a builder with the settings in the manager's file; without a file, the default ones.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotInFile`] if there is a file without this cache.
    pub fn named(&self, name: &str) -> Result<CacheBuilder<'_>, OpenError> {
        let settings = match &self.member.file {
            None => CacheSettings::new(name),
            Some(file) => file.caches.get(name).cloned().ok_or_else(|| {
                let known: Vec<&str> = file.caches.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                OpenError::NotInFile { cache: name.into(), file: file.source.as_str().into(), known }
            })?,
        };
        Ok(self.open_with(settings))
    }

    /// Returns the names of the file's caches.
    pub fn defined_caches(&self) -> impl Iterator<Item = &str> {
        self.member.file.iter().flat_map(|file| file.caches.keys().map(String::as_str))
    }

    /// Returns a builder with these settings; its methods set this member's own.
    pub fn open(&self, config: CacheConfig) -> CacheBuilder<'_> {
        self.open_with(config.into())
    }

    /// Returns a builder with these settings, including this member's own.
    pub fn open_with(&self, settings: CacheSettings) -> CacheBuilder<'_> {
        let (persistence, functions) = (None, Functions::default());
        CacheBuilder {
            manager: self,
            settings,
            persistence,
            functions,
            indexed_fields: None,
            open_timeout: OPEN_TIMEOUT,
            is_essential: false,
        }
    }

    /// Closes a cache here, after its operations have ended and other members have its segments. Returns
    /// whether it was open.
    ///
    /// # Errors
    ///
    /// [`HandoverTimeout`] after [`LEAVE_TIMEOUT`], or after [`LEAVE_DEGRADED_TIMEOUT`] if the cache is
    /// degraded and the view has no other member. The cache leaves all the same.
    pub async fn leave(&self, cache: &str) -> Result<bool, HandoverTimeout> {
        match self.opened(cache) {
            Some(opened) => self.member.leave(&opened, false).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Closes all caches so that other members have this member's data, then leaves the cluster. If a cache
    /// is degraded and no other member is left, it does not wait for unreachable members with this member's
    /// data.
    ///
    /// # Errors
    ///
    /// [`HandoverTimeout`] for a cache of which others may not have everything, as for
    /// [`CacheManager::leave`]. The manager is closed all the same.
    pub async fn close(self) -> Result<(), HandoverTimeout> {
        let opened: Vec<Arc<OpenCache>> = self.member.handler.caches().values().cloned().collect();
        let mut leaving = JoinSet::new();
        for cache in opened {
            let member = self.member.clone();
            leaving.spawn(async move { member.leave(&cache, true).await });
        }
        let left = leaving.join_all().await;
        self.member.channel.clone().close().await;
        left.into_iter().collect()
    }

    /// Ends the member like a crash, for tests, without messages to others. Stores are closed in order, with
    /// their queued changes.
    pub async fn abort(self) {
        let opened: Vec<Arc<OpenCache>> = self.member.handler.caches().values().cloned().collect();
        self.member.channel.clone().abort().await;
        for cache in opened {
            let _ = timeout(LEAVE_TIMEOUT, cache.phase.subscribe().wait_for(CachePhase::is_over)).await;
        }
    }

    /// Returns the statistics of a cache's store here, if any.
    pub fn store_stats(&self, cache: &str) -> Option<StoreStats> {
        let id = CacheId::of(cache);
        self.member.handler.state().stores.get_mut(id).map(|store| store.stats())
    }

    /// Returns why a cache's store cannot write here, without querying the file system.
    pub fn store_failure(&self, cache: &str) -> Option<String> {
        let (watch, _) =
            self.member.handler.state().stores.get_mut(CacheId::of(cache)).map(|store| store.watch())?;
        watch.failure()
    }

    /// Returns the health of a cache's store here, if any.
    pub fn store_health(&self, cache: &str) -> Option<StoreHealth> {
        let id = CacheId::of(cache);
        // A query of the file system may take long, so the member's lock is not held meanwhile.
        let (watch, pending) = self.member.handler.state().stores.get_mut(id).map(|store| store.watch())?;
        Some(watch.health(pending))
    }
}

impl Member {
    async fn leave(&self, cache: &OpenCache, ends: bool) -> Result<(), HandoverTimeout> {
        cache.begin_closing();
        let mut phase = cache.phase.subscribe();
        let left = async {
            loop {
                let quiet = cache.quiet.notified();
                if cache.is_quiet() {
                    break;
                }
                quiet.await;
            }
            self.handler.with_node(|node, now| node.leave(now, cache.id));
            tokio::select! {
                _ = phase.wait_for(CachePhase::is_over) => {}
                () = self.leave_behind(cache), if ends => {}
            }
            // The cache holds the sender.
            let _ = phase.wait_for(CachePhase::is_over).await;
        };
        let after = tokio::select! {
            () = left => return Ok(()),
            () = tokio::time::sleep(LEAVE_TIMEOUT) => LEAVE_TIMEOUT,
            () = self.has_no_member_to_wait_for(cache) => LEAVE_DEGRADED_TIMEOUT,
        };
        Err(HandoverTimeout { cache: cache.config.name.clone(), after })
    }

    /// When the view has no other member and the unreachable members have this member's data.
    async fn leave_behind(&self, cache: &OpenCache) {
        let (mut views, mut topologies) = (self.channel.watch_view(), cache.topology.subscribe());
        loop {
            until_alone(&mut views, &mut topologies).await;
            // Without a node it is closed anyway.
            if self.handler.with_node(|node, now| node.leave_behind(now, cache.id)) != Some(false) {
                return;
            }
            tokio::select! {
                _ = views.changed() => {}
                _ = topologies.changed() => {}
            }
        }
    }

    /// Returns when a cache was degraded for [`LEAVE_DEGRADED_TIMEOUT`] without another member in the view.
    async fn has_no_member_to_wait_for(&self, cache: &OpenCache) {
        let (mut views, mut topologies) = (self.channel.watch_view(), cache.topology.subscribe());
        loop {
            until_alone(&mut views, &mut topologies).await;
            tokio::select! {
                () = tokio::time::sleep(LEAVE_DEGRADED_TIMEOUT) => {
                    // Closing its store may take long.
                    if !cache.is_ending() {
                        return;
                    }
                }
                _ = views.wait_for(|view| !is_alone(view)) => {}
                _ = topologies.wait_for(|topology| !is_degraded(topology)) => {}
            }
        }
    }
}

fn is_alone(view: &Option<View>) -> bool {
    view.as_ref().is_some_and(|view| view.len() == 1)
}

fn is_degraded(topology: &Option<Topology>) -> bool {
    topology.as_ref().is_some_and(|topology| topology.availability != Availability::Available)
}

/// Returns when the view has no other member and the cache is degraded. The senders of both channels outlive this future: one is
/// the channel's, the other the cache's.
async fn until_alone(
    views: &mut watch::Receiver<Option<View>>,
    topologies: &mut watch::Receiver<Option<Topology>>,
) {
    let _ = views.wait_for(is_alone).await;
    let _ = topologies.wait_for(is_degraded).await;
}

enum Begun {
    Before(Arc<OpenCache>),
    Now(Opening),
}

/// Dropped before its node has begun, it leaves nothing behind.
struct Opening {
    handler: Arc<GridHandler>,
    opened: Option<Arc<OpenCache>>,
}

impl Opening {
    fn done(mut self) -> Arc<OpenCache> {
        self.opened.take().expect("it is taken once, here")
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.take() {
            self.handler.caches().remove(&opened.id);
            opened.ended(CachePhase::Closed);
        }
    }
}

/// A builder of a cache. A cache that is already open stays as it is.
#[must_use]
pub struct CacheBuilder<'a> {
    pub(crate) manager: &'a CacheManager,
    settings: CacheSettings,
    persistence: Option<Persistence>,
    pub(crate) functions: Functions,
    pub(crate) indexed_fields: Option<Arc<dyn IndexedFields>>,
    open_timeout: Duration,
    is_essential: bool,
}

impl CacheBuilder<'_> {
    /// Sets this member's relative share of the cache. [`CapacityFactor::ZERO`] owns nothing.
    pub fn capacity(mut self, capacity: CapacityFactor) -> Self {
        self.settings.capacity = capacity;
        self
    }

    /// Sets the memory limit here; none by default.
    pub fn memory(mut self, bound: MemoryBound) -> Self {
        self.settings.memory = Some(bound);
        self
    }

    /// Marks a cache with few small entries that the member needs: short of memory, its writes are refused
    /// last ([`ManagerBuilder::process_memory`]).
    pub fn essential(mut self) -> Self {
        self.is_essential = true;
        self
    }

    /// Makes the cache transactional: its entries can be changed by transactions ([`Cache::transaction`]), and single writes lock
    /// their keys. All members must agree.
    pub fn transactional(mut self) -> Self {
        self.settings.config.is_transactional = true;
        self
    }

    /// Sets the store here.
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = Some(persistence);
        self
    }

    /// Sets how long opening waits for a topology; default [`OPEN_TIMEOUT`]. A cache that existed before waits until all members
    /// of its last topology are back, or [`CacheManager::make_available`] is called on one that is.
    pub fn open_timeout(mut self, open_timeout: Duration) -> Self {
        self.open_timeout = open_timeout;
        self
    }

    /// Opens a cache of serde values ([`Postcard`]) and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; the cluster's cache is not changed.
    pub async fn cache<K, V>(self) -> Result<Cache<K, V>, OpenError> {
        self.encoded(Postcard, Postcard).await
    }

    /// Opens a cache of bytes ([`Raw`]).
    ///
    /// # Errors
    ///
    /// As [`CacheBuilder::cache`].
    pub async fn raw(self) -> Result<RawCache, OpenError> {
        self.encoded(Raw, Raw).await
    }

    /// Opens a cache in these encodings, whose media types replace that of the settings.
    ///
    /// # Errors
    ///
    /// As [`CacheBuilder::cache`].
    pub async fn encoded<K, V, KE: Encoding, VE: Encoding>(
        self,
        keys: KE,
        values: VE,
    ) -> Result<Cache<K, V, KE, VE>, OpenError> {
        let CacheSettings { mut config, capacity, memory, lifetime, flags, persistence } = self.settings;
        let persistence = self.persistence.or(persistence);
        config.encoding = match (keys.media_type(), values.media_type()) {
            (keys, values) if keys == values => keys.into(),
            (keys, values) => format!("{keys}, {values}").into(),
        };
        config.check()?;
        if let Some(bound) = memory.filter(|bound| bound.limit.is_zero()) {
            let (setting, value) = ("memory".into(), bound.limit.to_string().into());
            return Err(consort_grid::OpenError::Invalid { cache: config.name, setting, value }.into());
        }
        if persistence.is_some() {
            config.check_store()?;
        }
        if config.is_transactional && flags.contains(Flags::ASYNC) {
            let (setting, value) = ("mode".into(), "ASYNC together with transactions".into());
            return Err(consort_grid::OpenError::Invalid { cache: config.name, setting, value }.into());
        }
        let locked_writes: Option<Arc<dyn LockedWrites>> = match config.is_transactional {
            true => Some(self.manager.transactions().await?),
            false => None,
        };
        let member = &self.manager.member;
        let opened = match member.begin(&config, memory, persistence.is_some(), self.is_essential)? {
            Begun::Before(opened) => {
                member.handler.with_node(|node, _| self.functions.register(node, opened.id));
                opened
            }
            Begun::Now(opening) => {
                if let (Some(fields), Some(opened)) = (self.indexed_fields, &opening.opened) {
                    opened.container.indexes().set(Some(fields));
                }
                member.open(config, capacity, persistence, self.functions, &opening).await?;
                opening.done()
            }
        };
        member.until_open(&opened, self.open_timeout).await?;
        let options = CacheOptions { lifetime, flags, ..CacheOptions::default() };
        Ok(Cache::new(member.handler.clone(), opened, keys, values, options, locked_writes))
    }
}

impl Member {
    fn begin(
        &self,
        config: &CacheConfig,
        memory: Option<MemoryBound>,
        is_backed: bool,
        is_essential: bool,
    ) -> Result<Begun, OpenError> {
        let mut caches = self.handler.caches();
        if let Some(opened) = caches.get(&config.id()) {
            let cache = config.name.clone();
            return match opened.config.difference(config) {
                _ if opened.is_closing() => Err(OpenError::Closing(cache)),
                None => Ok(Begun::Before(opened.clone())),
                Some((setting, ours, asked)) => {
                    Err(OpenError::LocalConfigMismatch { cache, setting, ours, asked })
                }
            };
        }
        let settings = ContainerSettings {
            segment_count: config.segments,
            bound: memory,
            is_backed,
            is_shared: config.mode.is_shared(),
        };
        // The hash seed is random, so that clients that choose keys cannot predict their positions.
        let mut container = Container::new(&settings, RandomState::new().build_hasher().finish());
        if let Some(memory) = &self.handler.memory {
            container = container.within(memory.clone());
        }
        let container = Arc::new(if is_essential { container.essential() } else { container });
        let opened = Arc::new(OpenCache::new(config.clone(), container));
        caches.insert(opened.id, opened.clone());
        Ok(Begun::Now(Opening { handler: self.handler.clone(), opened: Some(opened) }))
    }

    async fn open(
        &self,
        config: CacheConfig,
        capacity: CapacityFactor,
        persistence: Option<Persistence>,
        functions: Functions,
        opening: &Opening,
    ) -> Result<(), OpenError> {
        let Some(opened) = &opening.opened else { return Err(OpenError::Closed) };
        let container = opened.container.clone();
        let backing = match persistence {
            None => None,
            Some(persistence) => Some(self.start_store(&config, persistence, container.clone()).await?),
        };
        let address = self.channel.address().clone();
        let member = CacheMember { address, capacity, location: self.location.clone() };
        let id = config.id();
        let (store, backing) = backing.unzip();
        if let Some(remembered) =
            backing.as_ref().and_then(|backing: &StoreSettings| backing.remembered.as_ref())
        {
            let _ = opened.remembered.set(remembered.topology.members.len());
        }
        if let Some(store) = store {
            self.handler.state().stores.insert(store);
        }
        let begun = self.handler.with_node(|node: &mut Node, now| {
            node.open_backed(now, config, member, container, backing)?;
            functions.register(node, id);
            Ok(())
        });
        let error = match begun {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => self.handler.named::<consort_grid::OpenError>(error).into(),
            None => OpenError::Closed,
        };
        let store = self.handler.state().stores.remove(id);
        if let Some(store) = store {
            store.close(|| {});
        }
        Err(error)
    }

    async fn start_store(
        &self,
        config: &CacheConfig,
        persistence: Persistence,
        container: Arc<Container>,
    ) -> Result<(StoreDriver, StoreSettings), OpenError> {
        let (passivation, writer) = (persistence.is_passivation(), persistence.writer());
        let watch = Arc::new(StoreWatch::new(config.name.clone(), persistence.directory_of(&config.name)));
        let (now, of) = (self.handler.now(), config.clone());
        let opening = tokio::task::spawn_blocking(move || persistence.open(&of, &container, now));
        // The task ends early only if it panics or the runtime is gone.
        let (store, remembered) = opening.await.map_err(|_| OpenError::Closed)??;
        let (id, name) = (config.id(), config.name.clone());
        let backed =
            StoreDriver::start(id, name.clone(), store, watch, writer, self.handler.completions.clone());
        let backed =
            backed.map_err(|error| OpenError::Store { cache: name, error: StoreFault(Arc::new(error)) })?;
        Ok((backed, StoreSettings { passivation, remembered }))
    }

    async fn until_open(&self, opened: &OpenCache, open_timeout: Duration) -> Result<(), OpenError> {
        let mut phase = opened.phase.subscribe();
        let is_known = |phase: &CachePhase| *phase != CachePhase::Joining;
        let Ok(known) = timeout(open_timeout, phase.wait_for(is_known)).await else {
            opened.begin_closing();
            self.handler.with_node(|node, now| node.leave(now, opened.id));
            let remembered = opened.remembered.get().copied().unwrap_or_default();
            return Err(OpenError::TimedOut {
                cache: opened.config.name.clone(),
                after: open_timeout,
                remembered,
            });
        };
        match known.as_deref() {
            Ok(CachePhase::Refused(error)) => Err(error.clone().into()),
            Ok(CachePhase::Open) => Ok(()),
            _ => Err(OpenError::Closed),
        }
    }
}
