//! The caches that clients have made, on every member the same: their definitions are in a cache that all servers have,
//! and so are the addresses at which clients reach them.

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
    CacheBuilder, CacheConfig, CacheError, CacheManager, CacheMode, CacheSettings, Durability, ManagerEvent,
    NotHandedOver, OperationError, RawCache, Segment,
};
use consort_hotrod::{CacheTopology, RequestHeader, ServerAddress, Status};
use futures_core::Stream;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::admin_error::AdminError;
use crate::aliases::Aliases;
use crate::bounds::{CACHE_NAME_MAX, FAILED_TRIED_EVERY, LOOKED_AT_MAX, WITHDRAW_TIME_MAX};
use crate::counters::{self, Counters};
use crate::data::{self, Data};
use crate::definition::{self, Definition, DefinitionError};
use crate::departure::{self, BeingRemoved};
use crate::failed_caches::FailedCaches;
use crate::listeners::Everywhere;
use crate::media::{Encoding, Types};
use crate::memory::Memory;
use crate::register::{Keeping, Register};
use crate::schemas::{SCHEMAS, Schemas};
use crate::security::Security;
use crate::served::Served;
use crate::streams::Unfinished;
use crate::telemetry::Telemetry;
use crate::topology::{self, Endpoint, Endpoints};
use crate::transactions::Transactions;
use crate::{filter, multimap, places, query, waiting};

/// Definitions by the caches' names: of those that are there again when all servers have ended, and of the others.
const DEFINITIONS: &str = "___consort_caches";
const VOLATILE_DEFINITIONS: &str = "___consort_volatile_caches";

/// Addresses of servers by those of the members.
const SERVERS: &str = "___consort_servers";

/// All that are the servers' own from their start on.
pub(crate) const OWN: [&str; 6] =
    [DEFINITIONS, VOLATILE_DEFINITIONS, SCHEMAS, SERVERS, counters::KEPT, counters::COUNTERS];

/// How long a server waits that could not see what the others have, before it looks again without being told to.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What becomes of the wish for a cache whose name is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfThere {
    /// It is refused.
    Refused,
    /// The cache is the one that was wanted, whatever it is like.
    Taken,
    /// The same if it is like the one that is wanted.
    TakenIfSame,
    /// It becomes like the one that is wanted, as far as that can be changed.
    Changed,
}

/// All of them.
pub(crate) struct Caches {
    manager: CacheManager,
    endpoint: ServerAddress,
    security: Arc<Security>,
    data: Option<Data>,
    /// Those that a client of this server removes: others close them before.
    being_removed: Mutex<BTreeSet<String>>,
    /// Held while a cache with files is closed and they are removed.
    removing: tokio::sync::Mutex<()>,
    pub(crate) definitions: Register,
    pub(crate) aliases: Aliases,
    pub(crate) schemas: Arc<Served>,
    pub(crate) servers: RawCache,
    pub(crate) counters: Counters,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) memory: Memory,
    /// What clients have begun to write in pieces.
    pub(crate) unfinished: Unfinished,
    /// Which connection has a listener.
    pub(crate) listeners: Everywhere,
    /// What servers share of transactions, as soon as a cache has any.
    transactions: OnceCell<Arc<Transactions>>,
    open: RwLock<BTreeMap<String, Arc<Served>>>,
    /// Those that are defined and could not be opened here.
    pub(crate) failed: FailedCaches,
    /// Where clients reach the members, and how often that has changed.
    endpoints: RwLock<(u64, Arc<Endpoints>)>,
    /// This server is about to end, and clients are not sent to it any more.
    is_leaving: AtomicBool,
}

/// A cache for clients that is being opened.
fn opening(manager: &CacheManager, settings: impl Into<CacheSettings>) -> CacheBuilder<'_> {
    query::register(multimap::known(filter::known(manager.open_with(settings.into()))))
}

/// Whether a name is of the servers' own caches, or of an alias or template among the definitions. Clients reach none of
/// these by its name, except the cache of schemas: [`Caches::get`] and [`Caches::find`] see to that.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with("___")
}

/// The settings of a cache that every server has as a whole.
pub(crate) fn everywhere(name: &str) -> CacheConfig {
    CacheConfig { mode: CacheMode::Replicated, segments: 16, ..CacheConfig::new(name) }
}

impl Caches {
    /// Joins the other servers. Clients reach this one there. What is to outlive all servers is kept in a directory. If it
    /// takes long, it is said what for.
    pub(crate) async fn open(
        manager: CacheManager,
        endpoint: ServerAddress,
        security: Arc<Security>,
        data: Option<&Data>,
        telemetry: Arc<Telemetry>,
        memory: Memory,
    ) -> Result<Self, AdminError> {
        let opening = Self::open_all(manager.clone(), endpoint, security, data, telemetry, memory);
        waiting::told(&manager, &OWN, opening).await
    }

    async fn open_all(
        manager: CacheManager,
        endpoint: ServerAddress,
        security: Arc<Security>,
        data: Option<&Data>,
        telemetry: Arc<Telemetry>,
        memory: Memory,
    ) -> Result<Self, AdminError> {
        // Definitions come and go by hand: what was acknowledged is safe also from a power failure.
        let of = |name| (name, opening(&manager, everywhere(name)));
        let lasting = |(name, opening), durability| data::open(&manager, name, opening, data, durability);
        let definitions = lasting(of(DEFINITIONS), Durability::Disk);
        let schemas = lasting(of(SCHEMAS), Durability::Disk);
        let counted = lasting(of(counters::KEPT), Durability::Process);
        let (definitions, schemas, counted) = tokio::try_join!(definitions, schemas, counted)?;
        let schemas = Served::of(&manager, schemas, Encoding::texts());
        let schemas = Arc::new(Served { schemas: Some(Schemas::default()), ..schemas });
        let volatile = manager.open(everywhere(VOLATILE_DEFINITIONS)).essential().raw().await?;
        let definitions = Register::new(definitions, volatile);
        let servers = manager.open(everywhere(SERVERS)).essential().raw().await?;
        let passing = opening(&manager, counters::config()).raw().await?;
        let passing = Arc::new(Served::of(&manager, passing, Encoding::default()));
        let counters = Counters::new(passing, counted, data.is_some());
        let caches = Self {
            manager,
            endpoint,
            security,
            data: data.cloned(),
            being_removed: Mutex::default(),
            removing: tokio::sync::Mutex::default(),
            counters,
            telemetry,
            definitions,
            aliases: Aliases::default(),
            schemas,
            servers,
            unfinished: Unfinished::within(&memory),
            memory,
            listeners: Everywhere::default(),
            transactions: OnceCell::new(),
            open: RwLock::default(),
            failed: FailedCaches::default(),
            endpoints: RwLock::new((0, Arc::default())),
            is_leaving: AtomicBool::new(false),
        };
        // Servers may have gone since they were taken in with us: then it goes on when they are back.
        while let Err(error) = caches.look().await {
            if !matches!(error, AdminError::Cache(CacheError::Operation(OperationError::Degraded { .. }))) {
                return Err(error);
            }
            sleep(LOOK_AGAIN_AFTER).await;
        }
        if let Some(data) = data {
            caches.log_files_of_no_cache(data).await;
        }
        Ok(caches)
    }

    /// Logs the directories that belong to none of the defined caches, whether those could be opened or not. While a
    /// definition cannot be read it is not known which directory is its cache's, and nothing is logged.
    async fn log_files_of_no_cache(&self, data: &Data) {
        let mut known = BTreeSet::new();
        let Ok(defined) = self.definitions.entries().await else { return };
        for (name, text) in defined {
            let name = String::from_utf8_lossy(&name);
            if is_ours(&name) {
                continue;
            }
            match self.directory(&name, &text) {
                Ok(directory) => known.extend(directory),
                Err(_) => return,
            }
        }
        places::log_others(data, known).await;
    }

    /// Where the files of a cache with this definition are, if it has a store and this server has a directory for data.
    fn directory(&self, name: &str, text: &Bytes) -> Result<Option<PathBuf>, DefinitionError> {
        let (definition, place) = definition::from_stored(name, &String::from_utf8_lossy(text))?;
        let place = place.filter(|_| definition.store.is_some());
        Ok(place
            .zip(self.data.as_ref())
            .map(|(place, data)| places::directory(&data.directory, name, &place)))
    }

    /// Where clients reach this member.
    fn own_endpoint(&self) -> Endpoint {
        Endpoint { address: self.endpoint.clone(), is_leaving: self.is_leaving.load(Ordering::Acquire) }
    }

    async fn tell_own_endpoint(&self) -> Result<Endpoint, CacheError> {
        let own = self.own_endpoint();
        let member = self.manager.address().to_string();
        self.servers.put(member.as_bytes(), own.to_text().as_bytes()).await?;
        Ok(own)
    }

    /// Lets clients of all servers know, with the next response, that they are to go on with other servers than this one, which
    /// performs requests for them as before. Whether there are others.
    pub(crate) async fn withdraw(&self) -> bool {
        self.is_leaving.store(true, Ordering::Release);
        let withdrawing = async {
            self.tell_own_endpoint().await?;
            self.look_at_endpoints().await
        };
        match timeout(WITHDRAW_TIME_MAX, withdrawing).await {
            Ok(Ok(endpoints)) => endpoints.values().any(|endpoint| !endpoint.is_leaving),
            Ok(Err(error)) => {
                tracing::warn!(%error, "clients of other servers are not told that this server ends");
                false
            }
            Err(_) => {
                tracing::warn!(
                    "clients of other servers may not be told that this server ends: the others did not acknowledge that \
                     within {WITHDRAW_TIME_MAX:?}"
                );
                false
            }
        }
    }

    /// What this server is a member of.
    pub(crate) const fn manager(&self) -> &CacheManager {
        &self.manager
    }

    /// Who may do what here.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// Whether anything here outlives all servers.
    pub(crate) const fn has_data(&self) -> bool {
        self.data.is_some()
    }

    /// All that are open here, by their names.
    pub(crate) fn all(&self) -> Vec<(String, Arc<Served>)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|(name, served)| (name.clone(), served.clone())).collect()
    }

    /// The names of those that may have a store, the servers' own included.
    pub(crate) fn with_stores(&self) -> Vec<String> {
        let own = OWN.iter().map(|name| (*name).to_owned());
        let others = self.all().into_iter().filter(|(_, served)| served.directory.is_some());
        own.chain(others.map(|(name, _)| name)).collect()
    }

    /// Those whose store cannot write on this server, and why.
    pub(crate) fn with_failing_stores(&self) -> BTreeMap<String, String> {
        let failing = |name: String| Some((name.clone(), self.manager.store_failure(&name)?));
        self.with_stores().into_iter().filter_map(failing).collect()
    }

    /// A cache that is open here, by the name that a client has for it. Of the servers' own caches clients reach the one of
    /// schemas, which Infinispan's clients read and write, and no other.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Served>> {
        self.opened(name).or_else(|| match name {
            SCHEMAS => Some(self.schemas.clone()),
            name if is_ours(name) => None,
            alias => self.opened(&self.meant_here(alias)?),
        })
    }

    /// A request is answered with an error.
    pub(crate) fn note_error(&self, header: &RequestHeader, status: Status) {
        match self.get(header.cache.as_str()).filter(|served| !is_ours(served.cache.name())) {
            Some(served) => served.stats.errors.note(status),
            None => self.telemetry.errors_without_cache.note(status),
        }
    }

    /// A cache that is open here, by its own name.
    fn opened(&self, name: &str) -> Option<Arc<Served>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// A cache, which is opened here if another server has made it a moment ago.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Arc<Served>>, AdminError> {
        if let Some(served) = self.get(name) {
            return Ok(Some(served));
        }
        // Aliases and templates are among the definitions under such names. A client is answered as for an unknown cache.
        if is_ours(name) {
            return Ok(None);
        }
        if let Some(text) = self.definitions.get(name.as_bytes()).await? {
            return self.serve_defined(name, &text).await;
        }
        let Some(name) = self.alias(name).await? else { return Ok(None) };
        if let Some(served) = self.opened(&name) {
            return Ok(Some(served));
        }
        let Some(text) = self.definitions.get(name.as_bytes()).await? else { return Ok(None) };
        self.serve_defined(&name, &text).await
    }

    /// Serves a cache that was defined a moment ago, unless it is defined no more: who removes it meanwhile closes what is
    /// open before this has opened it.
    async fn serve_defined(&self, name: &str, definition: &Bytes) -> Result<Option<Arc<Served>>, AdminError> {
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

    async fn serve(&self, name: &str, text: &Bytes) -> Result<Arc<Served>, AdminError> {
        let (definition, place) = definition::from_stored(name, &String::from_utf8_lossy(text))?;
        let transactions =
            if definition.is_transactional { Some(self.transactions().await?.clone()) } else { None };
        let opening = opening(&self.manager, definition.settings());
        let (cache, directory) = match (&definition.store, place) {
            (Some(store), Some(place)) => {
                let data = self.data.as_ref().ok_or(AdminError::NoData)?;
                let directory = places::directory(&data.directory, name, &place);
                let opening = opening.persistence(store.apply(data.store(&directory)));
                let cache = data::open_with_all(&self.manager, name, opening, Some(data)).await?;
                (cache, Some(directory))
            }
            _ => (opening.raw().await?, None),
        };
        let served = Served::of(&self.manager, cache, definition.encoding);
        let served = Served { transactions, definition: RwLock::new(text.clone()), directory, ..served };
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let served = open.entry(name.to_owned()).or_insert_with(|| Arc::new(served)).clone();
        drop(open);
        self.failed.forget(name, "is open now");
        Ok(served)
    }

    /// What servers share of transactions.
    pub(crate) async fn transactions(&self) -> Result<&Arc<Transactions>, AdminError> {
        let open = async || Ok(Arc::new(Transactions::open(&self.manager).await?));
        self.transactions.get_or_try_init(open).await
    }

    /// The same, if this server has it.
    pub(crate) fn transactions_if_open(&self) -> Option<&Arc<Transactions>> {
        self.transactions.get()
    }

    /// The segments of a cache that this server has, if it is not the only one that has the cache.
    pub(crate) fn own_segments(&self, served: &Served) -> Option<Arc<[Segment]>> {
        let own = self.manager.address();
        served.look(|topology| topology.read_owners().segments_of(own).collect())
    }

    /// The members, if this one is the first of them.
    pub(crate) fn members_if_first(&self) -> Option<Vec<String>> {
        let view = self.manager.view()?;
        let is_first = view.coordinator() == Some(self.manager.address());
        is_first.then(|| view.members().iter().map(ToString::to_string).collect())
    }

    /// What the schemas define now.
    pub(crate) async fn types(&self) -> Arc<Types> {
        match &self.schemas.schemas {
            Some(schemas) => schemas.types(&self.schemas.cache).await,
            None => Arc::default(),
        }
    }

    /// Makes a cache, here at once and on the other servers soon. Whether it was not there.
    pub(crate) async fn create(
        &self,
        definition: &Definition,
        if_there: IfThere,
        keeping: Keeping,
    ) -> Result<bool, AdminError> {
        let name = &*definition.config.name;
        if is_ours(name) || name.is_empty() {
            return Err(AdminError::Reserved(name.to_owned()));
        }
        if name.len() > CACHE_NAME_MAX {
            return Err(AdminError::LongName(name.len()));
        }
        if definition.store.is_some() && self.data.is_none() {
            return Err(AdminError::NoData);
        }
        if definition.store.is_some() && keeping == Keeping::Passing {
            return Err(AdminError::VolatileStore);
        }
        if !self.has_room_for_definition().await? {
            return Err(AdminError::TooMany);
        }
        if self.alias(name).await?.is_some() {
            // It is there, as another one.
            return match if_there {
                IfThere::Taken => Ok(false),
                _ => Err(AdminError::Exists(name.to_owned())),
            };
        }
        let aliases = definition.aliases.iter().flatten();
        self.check_aliases(name, aliases).await?;
        let place = definition.store.as_ref().map(|_| places::new());
        let value = Bytes::from(definition::to_stored(definition, place.as_deref()));
        let key = Bytes::copy_from_slice(name.as_bytes());
        let is_new = self.definitions.add(&key, value.clone(), keeping).await?;
        if !is_new {
            match if_there {
                IfThere::Refused => return Err(AdminError::Exists(name.to_owned())),
                IfThere::TakenIfSame if self.is_other(definition).await? => {
                    return Err(AdminError::Different(name.to_owned()));
                }
                IfThere::Changed => self.change(name, |_| Ok(definition.clone())).await?,
                IfThere::Taken | IfThere::TakenIfSame => {}
            }
            return self.find(name).await.map(|_| false);
        }
        let opened = self.serve(name, &value).await;
        if opened.is_err() {
            self.definitions.remove(name.as_bytes()).await?;
            if let (Some(data), Some(place)) = (&self.data, &place) {
                places::remove(places::directory(&data.directory, name, place)).await;
            }
        }
        opened?;
        if let Some(aliases) = &definition.aliases {
            self.set_aliases(name, aliases).await?;
        }
        Ok(true)
    }

    /// Lets a cache become like another definition on all servers, here at once and on the others soon.
    pub(crate) async fn change(
        &self,
        name: &str,
        to: impl Fn(&Definition) -> Result<Definition, DefinitionError>,
    ) -> Result<(), AdminError> {
        if is_ours(name) {
            return Err(AdminError::Reserved(name.to_owned()));
        }
        let meant = self.alias(name).await?;
        let name = meant.as_deref().unwrap_or(name);
        let none = || AdminError::None(name.to_owned());
        // Whoever changes it at the same time has done so when this has to begin anew.
        loop {
            let text = self.definitions.newest(name.as_bytes()).await?.ok_or_else(none)?;
            let (before, place) = definition::from_stored(name, &String::from_utf8_lossy(&text))?;
            let after = to(&before)?;
            definition::check_alteration(&before, &after)?;
            let aliases = after.aliases.iter().flatten();
            self.check_aliases(name, aliases).await?;
            let changed = Bytes::from(definition::to_stored(&after, place.as_deref()));
            if changed == text || self.definitions.replace(name.as_bytes(), &text, &changed).await? {
                if let Some(served) = self.opened(name) {
                    served.adopt(&changed);
                }
                return match &after.aliases {
                    Some(aliases) => self.set_aliases(name, aliases).await,
                    None => Ok(()),
                };
            }
        }
    }

    /// Whether the cache of this name is there, and is not as it is defined here.
    pub(crate) async fn is_other(&self, definition: &Definition) -> Result<bool, AdminError> {
        let name = &*definition.config.name;
        let Some(text) = self.definitions.newest(name.as_bytes()).await? else { return Ok(false) };
        // Aliases may have gone elsewhere since.
        let without = Definition { aliases: None, ..definition.clone() };
        Ok(definition::from_stored(name, &String::from_utf8_lossy(&text))?.0 != without)
    }

    /// Removes a cache from all servers, here at once.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), AdminError> {
        if is_ours(name) {
            return Err(AdminError::Reserved(name.to_owned()));
        }
        let has_files = self.has_files(name);
        if self.definitions.get(name.as_bytes()).await?.is_some() {
            self.set_aliases(name, &BTreeSet::new()).await?;
        }
        let being_removed = BeingRemoved::begin(&self.being_removed, name);
        // Of several who remove it one waits: it is the last one that closes it, so that a cache that is made afterwards finds
        // none of its name. The others close it at once.
        if self.definitions.remove(name.as_bytes()).await? {
            departure::elsewhere(self, name).await;
        }
        drop(being_removed);
        self.close(name).await?;
        if has_files {
            // Who looks at the definitions may have begun to close it before.
            drop(self.removing.lock().await);
        }
        Ok(())
    }

    fn is_being_removed(&self, name: &str) -> bool {
        self.being_removed.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    fn has_files(&self, name: &str) -> bool {
        self.opened(name).is_some_and(|served| served.directory.is_some())
    }

    async fn close(&self, name: &str) -> Result<(), AdminError> {
        let _removing = if self.has_files(name) { Some(self.removing.lock().await) } else { None };
        let served = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.manager.leave(name).await?;
        if let Some(directory) = served.and_then(|served| served.directory.clone()) {
            places::remove(directory).await;
        }
        Ok(())
    }

    /// The names of all caches among those of all definitions.
    pub(crate) fn names_among(names: &[Bytes]) -> Vec<String> {
        let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        names.filter(|name| !is_ours(name)).collect()
    }

    /// What a client is to be told of a cache's owners, if it knows something else.
    pub(crate) fn topology_for(&self, served: &Served, header: &RequestHeader) -> Option<Arc<CacheTopology>> {
        let told = topology::is_wanted(header).then(|| self.topology_of(served))?;
        told.filter(|told| topology::is_news(told, header))
    }

    /// What clients are told of a cache's owners now; nothing of a cache that only this server has.
    pub(crate) fn topology_of(&self, served: &Served) -> Option<Arc<CacheTopology>> {
        let installed = served.topology.as_ref()?.borrow();
        let installed = installed.as_ref()?;
        let (generation, endpoints) = self.endpoints.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut last = served.told.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((of, with, told)) if (*of, *with) == (installed.id, generation) => Some(told.clone()),
            _ => {
                let told = Arc::new(topology::told(installed, &endpoints)?);
                *last = Some((installed.id, generation, told.clone()));
                Some(told)
            }
        }
    }

    /// Looks whenever members come or go, or others make or remove caches, until it is dropped. What it looks at is on
    /// every member, so that a look costs no message.
    pub(crate) async fn follow(&self) {
        let mut members = self.manager.events();
        let listening = async || {
            let [lasting, passing] = self.definitions.listen(LOOKED_AT_MAX).await?;
            let servers = self.servers.listen().events_max(LOOKED_AT_MAX).start().await?;
            let schemas = self.schemas.cache.listen().events_max(LOOKED_AT_MAX).start().await?;
            Ok::<_, CacheError>([lasting, passing, servers, schemas])
        };
        let mut listening = match listening().await {
            Ok(listening) => listening,
            Err(error) => return tracing::error!(%error, "what other servers do is not seen here"),
        };
        let mut has_changed = move |cx: &mut Context<'_>| {
            let mut has_changed = Poll::Pending;
            while let Poll::Ready(event) = Pin::new(&mut members).poll_next(cx) {
                match event {
                    None => return Poll::Ready(false),
                    // With one of these what others have had for long is here, too.
                    Some(ManagerEvent::Topology { cache, .. }) if !is_ours(&cache) => {}
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
            let looked = self.look().await;
            let changed = poll_fn(&mut has_changed);
            let goes_on = match looked {
                Ok(()) if self.failed.len() > 0 => timeout(FAILED_TRIED_EVERY, changed).await.unwrap_or(true),
                Ok(()) => changed.await,
                Err(error) => {
                    tracing::debug!(%error, "what other servers have is not known");
                    timeout(LOOK_AGAIN_AFTER, changed).await.unwrap_or(true)
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Where clients reach those that are servers, by the addresses of members: also those that are known since a moment ago.
    pub(crate) async fn servers(&self) -> Result<Endpoints, CacheError> {
        let (mut walk, mut endpoints) = (self.servers.entries(), Endpoints::new());
        while let Some((member, at)) = walk.next().await.transpose()? {
            let (member, at) = (String::from_utf8_lossy(&member).into_owned(), String::from_utf8_lossy(&at));
            if let Some(endpoint) = Endpoint::from_text(&at) {
                endpoints.insert(member, endpoint);
            }
        }
        Ok(endpoints)
    }

    /// Takes over where clients reach the members.
    async fn look_at_endpoints(&self) -> Result<Arc<Endpoints>, CacheError> {
        let mut endpoints = self.servers().await?;
        self.forget_members_gone(&endpoints).await?;
        // Another part of the cluster may have taken us for gone while we were apart.
        let own = self.manager.address().to_string();
        if let Entry::Vacant(vacant) = endpoints.entry(own) {
            vacant.insert(self.tell_own_endpoint().await?);
        }
        let mut known = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        if *known.1 != endpoints {
            *known = (known.0 + 1, Arc::new(endpoints));
        }
        Ok(known.1.clone())
    }

    /// Has what the others have.
    async fn look(&self) -> Result<(), AdminError> {
        self.look_at_endpoints().await?;
        self.compare_requirements().await?;
        self.share_secret().await?;
        let age = self.aliases.age();
        let defined = self.definitions.entries().await?.into_iter();
        let mut defined: BTreeMap<String, Bytes> =
            defined.map(|(name, text)| (String::from_utf8_lossy(&name).into_owned(), text)).collect();
        self.look_at_aliases(&defined, age).await?;
        defined.retain(|name, _| !is_ours(name));
        for (name, served) in self.all() {
            if defined.get(&name) == Some(&served.definition()) || self.is_being_removed(&name) {
                continue;
            }
            // It may have been made after the walk had passed. One that is defined otherwise was made again, or changed.
            let is_as_it_is = |text: &Bytes| *text == served.definition() || served.adopt(text);
            if !self.definitions.get(name.as_bytes()).await?.as_ref().is_some_and(is_as_it_is) {
                self.close(&name).await?;
            }
        }
        let is_open = |name: &String| self.opened(name).is_some();
        for (name, text) in defined.iter().filter(|(name, _)| !is_open(name)) {
            match self.serve_defined(name, text).await {
                // It has been logged, and the health names it.
                Ok(_) | Err(AdminError::NotOpened { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.failed.retain(|name| defined.contains_key(name));
        Ok(())
    }

    /// The first member takes away where those were reached that have gone.
    async fn forget_members_gone(&self, endpoints: &Endpoints) -> Result<(), CacheError> {
        let Some(members) = self.members_if_first() else { return Ok(()) };
        for member in endpoints.keys().filter(|member| !members.contains(member)) {
            self.servers.remove(member.as_bytes()).await?;
        }
        Ok(())
    }

    /// Hands over what only this member has, and leaves.
    pub(crate) async fn end(&self) -> Result<(), NotHandedOver> {
        // Clients follow the others' topologies meanwhile, without this server. The first member forgets where it was reached.
        if !self.is_leaving.load(Ordering::Acquire) {
            self.withdraw().await;
        }
        // Up to here its clients were users. Where nobody answers, the first of the others takes it away.
        let _ = timeout(WITHDRAW_TIME_MAX, self.withdraw_requirement()).await;
        self.manager.clone().close().await
    }
}
