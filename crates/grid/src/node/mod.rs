//! A member of the grid as a state machine.
//!
//! After each input (`handle_*`, [`Node::open`], [`Node::leave`], [`Node::submit`]) the driver drains
//! [`Node::poll_frame`], [`Node::poll_finished`] and [`Node::poll_event`]. Time never runs backwards. The
//! guarantees are in `docs/design/2026-11-grid.md`.

mod computations;
mod expiry;
mod frames;
mod promise;
mod stats;
mod streams;
mod wire_version;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time, View};

use crate::command::{Body, Call, Command, ToCoordinator};
use crate::config::CacheId;
use crate::coordinator::Coordinator;
use crate::cx::Cx;
use crate::cx::calls::{CALLS_MAX, InFlight};
use crate::merge::MergeFn;
use crate::operation::{Action, OperationError, Outcome, Write, Written};
use crate::publication::{ReduceFn, TransformFn};
use crate::replica::CacheReplica;
use crate::replica::store::Store;
use crate::{
    CacheConfig, CacheMember, CacheMode, CapacityFactor, Container, Flags, Loaded, OpenError, Rebalancing,
    StoreFailure, StoreRequest, StoreSettings, Topology,
};

use expiry::ExpirySchedule;
use promise::{EarlyMessages, is_unknown_to_coordinator, look_for_coordinator};
use wire_version::incompatible_coordinator;

pub use crate::cx::response_window::ResponseLimits;
pub use crate::cx::waiting_events::{LISTENERS_BYTES_MAX, TakenEvents};
pub use crate::cx::{Counters, Frame, NodeEvent, TRANSFER_BUDGET};
pub use crate::replica::iterate::computations::{Computation, Computed};
pub use stats::{Load, NodeStats, Progress, ResponseLoad};

const LOOK_AFTER: Duration = Duration::from_millis(250);

/// An operation's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubmitOptions {
    /// Deviations from the configuration.
    pub flags: Flags,
    /// The time until it fails.
    pub timeout: Duration,
    /// The limit in bytes for another member's value. A larger one fails with
    /// [`OperationError::LargeResponse`] and changes nothing, unless the operation was sent twice, because
    /// one copy may have been executed.
    pub response_bytes_max: u32,
}

impl Default for SubmitOptions {
    fn default() -> Self {
        Self { flags: Flags::NONE, timeout: Duration::ZERO, response_bytes_max: Call::ANY_BYTES }
    }
}

type Caches = BTreeMap<CacheId, CacheReplica>;

/// A member of the grid.
pub struct Node {
    pub(crate) cx: Cx,
    pub(crate) caches: Caches,
    pub(crate) coordinator: Coordinator,
    pub(crate) early: EarlyMessages,
    pub(crate) look_after: Option<Time>,
    expiry: ExpirySchedule,
    pub(crate) next_iteration: u64,
    pub(crate) next_listener: u64,
    pub(crate) commands: Vec<Command>,
}

impl Node {
    /// Returns a member without caches.
    pub fn new(local: Address) -> Self {
        Self {
            cx: Cx::new(local.clone()),
            caches: BTreeMap::new(),
            coordinator: Coordinator::new(local),
            early: EarlyMessages::default(),
            look_after: None,
            expiry: ExpirySchedule::default(),
            next_iteration: 0,
            next_listener: 0,
            commands: Vec::new(),
        }
    }

    /// Sets the entry bytes of a transfer's chunk, by default and at most a packet's size.
    pub fn set_chunk_bytes(&mut self, bytes: u32) {
        self.cx.chunk_bytes = bytes.clamp(1, crate::cx::CHUNK_BYTES);
    }

    /// Sets the bytes in transfer to this member, for each cache; [`TRANSFER_BUDGET`] by default and at most.
    pub fn set_transfer_budget(&mut self, bytes: u32) {
        let pulls = (bytes / crate::cx::CHUNK_BYTES).clamp(1, crate::cx::PULLS_MAX);
        self.cx.pulls_max = pulls as usize;
        self.set_chunk_bytes(bytes / pulls);
    }

    /// Sets the limits of other members' value bytes, before the first operation.
    pub fn set_response_limits(&mut self, limits: ResponseLimits) {
        self.cx.calls.window.set_limits(limits);
    }

    /// Injects a bug.
    #[cfg(feature = "injected-bugs")]
    pub fn inject_bug(&mut self, bug: crate::InjectedBug) {
        self.cx.injected_bug = Some(bug);
    }

    /// Registers a transform; all members of the cache must do so before its use.
    pub fn register_transform(&mut self, cache: CacheId, name: &str, transform: Arc<TransformFn>) {
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.iterations.transforms.insert(name.into(), transform);
        }
    }

    /// Registers a reduction like a transform.
    pub fn register_reduction(&mut self, cache: CacheId, name: &str, reduction: Arc<ReduceFn>) {
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.iterations.reductions.insert(name.into(), reduction);
        }
    }

    /// Registers a merge policy; all members must do so before they open a cache with it.
    pub fn register_merge(&mut self, name: &str, merge: Arc<MergeFn>) {
        self.cx.merges.insert(name.into(), merge);
    }

    /// Opens a cache. Operations wait for [`NodeEvent::Installed`].
    ///
    /// # Errors
    ///
    /// [`OpenError`]; nothing was changed.
    pub fn open(
        &mut self,
        now: Time,
        config: CacheConfig,
        member: CacheMember,
        container: Arc<Container>,
    ) -> Result<(), OpenError> {
        self.open_backed(now, config, member, container, None)
    }

    /// Opens a cache, with a store if `backing` is given; the container has the store's entries.
    ///
    /// # Errors
    ///
    /// As for [`Node::open`].
    pub fn open_backed(
        &mut self,
        now: Time,
        config: CacheConfig,
        member: CacheMember,
        container: Arc<Container>,
        backing: Option<StoreSettings>,
    ) -> Result<(), OpenError> {
        self.cx.now = now;
        config.check()?;
        if backing.is_some() {
            config.check_store()?;
        }
        self.cx.knows_merge(&config)?;
        let id = config.id();
        if self.caches.contains_key(&id) {
            return Err(OpenError::AlreadyOpen(config.name));
        }
        let remembered = backing.as_ref().and_then(|backing| backing.remembered.as_ref());
        if let Some((setting, ours, theirs)) =
            remembered.and_then(|remembered| config.difference(&remembered.config))
        {
            let (setting, ours, theirs) = (setting.into(), ours.into(), theirs.into());
            return Err(OpenError::StoreConfigMismatch { cache: config.name, setting, ours, theirs });
        }
        // In an invalidation cache, each member has entries of its own, so the capacity factor does not apply.
        let capacity =
            if config.mode == CacheMode::Invalidation { CapacityFactor::default() } else { member.capacity };
        let mut cache = CacheReplica::new(config, CacheMember { capacity, ..member }, container);
        cache.store = Store::new(backing);
        if cache.shared.is_local() {
            let first = cache.store.first_topology(&cache.shared, &self.cx);
            cache.install(&mut self.cx, first);
        }
        if let Some(error) = incompatible_coordinator(&self.cx, &cache) {
            return Err(error);
        }
        cache.ask_coordinator(&mut self.cx);
        if let Some(end) = cache.shared.container.expiry().next_deadline() {
            self.cx.note_expiry(end);
        }
        self.caches.insert(id, cache);
        self.work();
        Ok(())
    }

    /// Leaves a cache after the transfer of its segments. [`NodeEvent::Left`] follows.
    pub fn leave(&mut self, now: Time, cache: CacheId) {
        self.cx.now = now;
        if let Some(cache) = self.caches.get_mut(&cache) {
            if cache.shared.is_local() {
                let id = cache.shared.id;
                self.close(id);
                self.cx.events.push_back(NodeEvent::Left { cache: id });
            } else {
                cache.is_leaving = true;
                cache.ask_coordinator(&mut self.cx);
            }
        }
        self.work();
    }

    /// Completes a leave from a degraded cache for a member that stops now, because no member could receive
    /// its data. Succeeds, followed by [`NodeEvent::Left`], if no other reachable member has the cache open
    /// and the unreachable ones, which continue with it, hold all of this member's data. A member that stays
    /// may still hand over its vote after a rejoin.
    pub fn leave_behind(&mut self, now: Time, cache: CacheId) -> bool {
        self.cx.now = now;
        let is_left = self.caches.get(&cache).is_some_and(|one| {
            let is_kept = |topology: &Topology| {
                one.shared.config.mode == CacheMode::Invalidation || topology.is_kept_without(&self.cx.local)
            };
            one.is_leaving && one.shared.topology().is_some_and(is_kept)
        });
        if is_left {
            self.close(cache);
            self.cx.events.push_back(NodeEvent::Left { cache });
        }
        self.work();
        is_left
    }

    /// Makes a degraded cache available again, whatever was lost.
    pub fn make_available(&mut self, now: Time, cache: CacheId) {
        self.cx.now = now;
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.shared.tell_coordinator(&mut self.cx, ToCoordinator::MakeAvailable);
        }
        self.work();
    }

    /// Sets which caches are balanced while this member is the coordinator. Enabled ones are balanced at once; a rebalance in
    /// progress is completed in any case.
    pub fn set_rebalancing(&mut self, now: Time, rebalancing: Rebalancing) {
        self.cx.now = now;
        if self.cx.rebalancing != rebalancing {
            self.cx.rebalancing = rebalancing;
            self.coordinator.balance(&mut self.cx);
            self.work();
        }
    }

    /// Sets whether all members are about to leave. While it is set and this member is the coordinator, no entries are moved:
    /// members that leave ([`Node::leave`]) wait until all members of the cache that this member reaches do. Then the cache ends
    /// everywhere, and each member's store keeps the entries that it owned, for a restart of all. All members should set it, because
    /// each may become the coordinator. The copies of a member that is lost meanwhile are not replaced.
    pub fn set_cluster_stopping(&mut self, now: Time, is_stopping: bool) {
        self.cx.now = now;
        if self.cx.is_cluster_stopping != is_stopping {
            self.cx.is_cluster_stopping = is_stopping;
            self.coordinator.balance(&mut self.cx);
            self.work();
        }
    }

    /// Begins an operation and returns the number that [`Node::poll_finished`] returns, perhaps at once.
    ///
    /// # Errors
    ///
    /// [`OperationError::Closed`], [`OperationError::TooManyInFlight`] and [`OperationError::Unsupported`];
    /// nothing was done.
    pub fn submit(
        &mut self,
        now: Time,
        cache: CacheId,
        key: Bytes,
        action: Action,
        timeout: Duration,
    ) -> Result<u64, OperationError> {
        let options = SubmitOptions { timeout, ..SubmitOptions::default() };
        self.submit_with(now, cache, key, action, options)
    }

    /// Begins an operation with options.
    ///
    /// # Errors
    ///
    /// As for [`Node::submit`].
    pub fn submit_with(
        &mut self,
        now: Time,
        cache: CacheId,
        key: Bytes,
        action: Action,
        options: SubmitOptions,
    ) -> Result<u64, OperationError> {
        let SubmitOptions { flags, timeout, response_bytes_max } = options;
        self.cx.now = now;
        let Some(cache) = self.caches.get_mut(&cache) else { return Err(OperationError::Closed) };
        cache.shared.check(&action, flags)?;
        if self.cx.calls.is_full() {
            return Err(OperationError::TooManyInFlight(CALLS_MAX as u64));
        }
        let segment = cache.shared.config.segment_of(&key);
        let action = match action {
            Action::Write(write) => {
                match cache.write_as_sole_owner(&mut self.cx, segment, &key, write, flags) {
                    Ok(result) => {
                        let number = self.cx.calls.end_at_once(result.map(Outcome::Written));
                        self.expiry.note(&mut self.cx);
                        return Ok(number);
                    }
                    Err(write) => Action::Write(write),
                }
            }
            read @ Action::Read(_) => read,
        };
        let mut call = InFlight::new(cache.shared.id, segment, key, action, now, timeout);
        call.flags = flags;
        call.response_bytes_max = response_bytes_max;
        let number = self.cx.calls.open(call);
        cache.send_to_target(&mut self.cx, number);
        self.work();
        Ok(number)
    }

    /// Writes at once if this member is the key's only owner, no listener receives the write, and it changes
    /// the entry.
    ///
    /// # Errors
    ///
    /// Returns the write if these conditions or the cache prevent it; [`Node::submit`] then carries it out or
    /// returns the error.
    pub fn write_here(
        &mut self,
        now: Time,
        cache: CacheId,
        key: &[u8],
        write: Write,
    ) -> Result<Result<Written, OperationError>, Write> {
        self.cx.now = now;
        let Some(cache) = self.caches.get_mut(&cache) else { return Err(write) };
        let segment = cache.shared.config.segment_of(key);
        let result = cache.write_as_sole_owner(&mut self.cx, segment, key, write, Flags::NONE)?;
        self.expiry.note(&mut self.cx);
        Ok(result)
    }

    /// Handles a new view.
    pub fn handle_view(&mut self, now: Time, view: &View) {
        self.cx.now = now;
        self.cx.coordinator = view.coordinator().cloned();
        let caches = &self.caches;
        let is_member = |caller: &Address| {
            caches
                .values()
                .any(|cache| cache.shared.topology().is_some_and(|topology| topology.contains(caller)))
        };
        // Operations that unreachable members have finished must stay finished when they rejoin.
        self.cx.watermarks.retain(|caller| view.contains(caller) || is_member(caller));
        self.cx.foreigners.retain(|member, _| view.contains(member));
        self.cx.silence.retain(|member| view.contains(member));
        self.cx.calls.window.retain(|member| view.contains(member));
        self.cx.keep_outbox(|member| view.contains(member));
        let local = self.cx.local.clone();
        self.cx.computations.keep(|member| *member == local || view.contains(member));
        self.cx.keep_view(view);
        self.coordinator.handle_view(&mut self.cx, view);
        for cache in self.caches.values() {
            cache.ask_coordinator(&mut self.cx);
        }
        look_for_coordinator(&mut self.cx, &self.caches);
        self.early.handle_view(&mut self.cx, &mut self.caches);
        self.work();
    }

    /// Handles missed heartbeats: reads go to other owners until a frame arrives.
    pub fn handle_silence(&mut self, now: Time, members: &[Address]) {
        self.cx.now = now;
        self.cx.silence.set_unheard(members);
        for cache in self.caches.values_mut() {
            cache.move_reads(&mut self.cx);
        }
        self.work();
    }

    pub(crate) fn handle(&mut self, from: &Address, command: Command) {
        let id = command.cache;
        match command.body {
            Body::ToCoordinator(told) => {
                self.coordinator.handle(&mut self.cx, id, command.topology, from, told);
            }
            Body::StatusRequest { ballot } => {
                self.early.handle_status_request(&mut self.cx, &self.caches, from, ballot);
            }
            Body::Memory { shortage } => self.cx.memory.note_member(from, shortage),
            // On other members, the name of a local cache denotes another cache.
            _ if self.caches.get(&id).is_some_and(|cache| cache.shared.is_local())
                && *from != self.cx.local => {}
            Body::Install { ballot, topology } => {
                self.early.handle_install(&mut self.cx, &mut self.caches, from, ballot, id, *topology);
            }
            Body::Refused(error) if self.cx.coordinator.as_ref() == Some(from) => {
                if self.caches.get(&id).is_some_and(|cache| cache.shared.installed.is_none()) {
                    self.close(id);
                    self.cx.events.push_back(NodeEvent::Refused { cache: id, error });
                }
            }
            // A member that has reported its caches to a new coordinator still has them, so a `Left` of an earlier coordinator
            // does not count.
            Body::Left if self.cx.coordinator.as_ref() == Some(from) => {
                if self.caches.get(&id).is_some_and(|cache| cache.is_leaving) {
                    self.close(id);
                    self.cx.events.push_back(NodeEvent::Left { cache: id });
                }
            }
            Body::Left | Body::Refused(_) => {}
            _ => {
                if let Some(cache) = self.caches.get_mut(&id) {
                    cache.handle(&mut self.cx, from, command);
                }
            }
        }
    }

    pub(crate) fn close(&mut self, id: CacheId) {
        self.cx.mark_rejoined(None, id);
        if let Some(mut cache) = self.caches.remove(&id) {
            cache.store.persist_on_close(&cache.shared, &mut self.cx);
            for segment in cache.shared.config.all_segments() {
                cache.shared.container.set_readable(segment, false);
            }
            cache.iterations.wake_readers(&cache.shared, &mut self.cx);
            cache.listeners.wake_readers(id, &mut self.cx);
        }
        for number in self.cx.calls.of(id) {
            let may_have_been_applied =
                self.cx.calls.get_mut(number).is_some_and(|call| call.may_have_been_applied());
            let error =
                if may_have_been_applied { OperationError::Uncertain } else { OperationError::Closed };
            self.cx.calls.finish(number, Err(error));
        }
    }

    pub(crate) fn work(&mut self) {
        let local = self.cx.local.clone();
        loop {
            while let Some(command) = self.cx.own_commands.pop_front() {
                self.handle(&local, command);
            }
            let Some((cache, number)) = self.cx.calls.next_with_room() else { break };
            if let Some(cache) = self.caches.get_mut(&cache) {
                cache.send_to_target(&mut self.cx, number);
            }
        }
        self.cx.tell_memory();
        if self.look_after.is_none() && self.is_anything_open() {
            self.look_after = Some(self.cx.now + LOOK_AFTER);
        }
        self.expiry.note(&mut self.cx);
    }

    pub(crate) fn is_anything_open(&self) -> bool {
        let waits = |cache: &CacheReplica| {
            cache.shared.installed.is_none()
                || cache.is_leaving
                || cache.transfer.is_active()
                || cache.merge.is_active()
                || !cache.deferred.is_empty()
                || cache.iterations.has_waiting_reader()
                || cache.store.persistence.as_ref().is_some_and(|persistence| persistence.needs_look())
                || !cache.listeners.is_settled()
                || !cache.idle_probes.is_empty()
                || cache.handovers.unsettled.is_some()
        };
        is_unknown_to_coordinator(&self.cx, &self.caches)
            || self.cx.memory.is_told_short()
            || !self.cx.calls.is_empty()
            || self.coordinator.is_waiting()
            || self.caches.values().any(waits)
    }

    /// Sets whether the channel has room for frames to a member (it has before the first call), and the limit
    /// of bytes until the next call.
    ///
    /// Without room, only responses to the member's reads wait, without their values. Returns true if waiting
    /// reads were executed; then there may be frames to send.
    pub fn handle_room(
        &mut self,
        now: impl FnOnce() -> Time,
        member: &Address,
        is_open: bool,
        burst_bytes: u64,
    ) -> bool {
        self.cx.set_room(member, is_open, burst_bytes);
        if !self.cx.responses.has_waiting(member) {
            return false;
        }
        self.cx.now = now();
        while let Some(command) = self.cx.next_read(member) {
            self.handle(member, command);
        }
        self.work();
        true
    }

    /// Returns the time for [`Node::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.look_after, self.expiry.next()].into_iter().flatten().min()
    }

    /// Executes the work that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cx.now = now;
        self.expiry.expire(&mut self.cx, &mut self.caches);
        if self.look_after.is_none_or(|at| at > now) {
            return self.work();
        }
        self.look_after = None;
        self.coordinator.look_after(&mut self.cx);
        look_for_coordinator(&mut self.cx, &self.caches);
        for cache in self.caches.values_mut() {
            cache.tick(&mut self.cx);
        }
        self.work();
    }

    /// Returns the next frame to send.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.cx.next_frame()
    }

    /// Whether a frame waits.
    pub fn has_frames(&self) -> bool {
        self.cx.has_frames()
    }

    /// Whether [`Node::submit`] returns [`OperationError::TooManyInFlight`].
    pub fn is_busy(&self) -> bool {
        self.cx.calls.is_full()
    }

    /// Returns the next ended operation.
    pub fn poll_finished(&mut self) -> Option<(u64, Result<Outcome, OperationError>)> {
        self.cx.calls.finished.pop_front()
    }

    /// Returns the next request to a store.
    pub fn poll_store(&mut self) -> Option<(CacheId, StoreRequest)> {
        self.cx.store.pop_front()
    }

    /// Handles the result of the store's request of this number, which ends after all earlier ones.
    pub fn handle_stored(
        &mut self,
        now: Time,
        cache: CacheId,
        number: u64,
        result: Result<(), StoreFailure>,
    ) {
        self.cx.now = now;
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.handle_stored(&mut self.cx, number, result);
        }
        self.work();
    }

    /// Handles the result of the store's load of this number.
    pub fn handle_loaded(
        &mut self,
        now: Time,
        cache: CacheId,
        number: u64,
        result: Result<Loaded, StoreFailure>,
    ) {
        self.cx.now = now;
        if let Some(cache) = self.caches.get_mut(&cache) {
            cache.handle_loaded(&mut self.cx, number, result);
        }
        self.work();
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.cx.events.pop_front()
    }
}
