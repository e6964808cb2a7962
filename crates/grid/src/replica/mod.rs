//! One cache on one member.

pub(crate) mod events;
pub(crate) mod expiry;
pub(crate) mod install;
pub(crate) mod iterate;
pub(crate) mod merge;
pub(crate) mod store;
pub(crate) mod store_results;
pub(crate) mod transfer;
pub(crate) mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use consort_group::{Address, Time};

use crate::command::{Body, Call, Chunk, Command, Pull, ToCoordinator};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::history::SegmentHistory;
use crate::injected_bugs::InjectedBug;
use crate::replica::events::listeners::Listeners;
use crate::replica::expiry::last_use::PendingLastUses;
use crate::replica::expiry::max_idle::IdleProbes;
use crate::replica::iterate::Iterations;
use crate::replica::merge::{Merge, PreMergeState};
use crate::replica::store::Store;
use crate::replica::store::loads::Found;
use crate::replica::transfer::state_consumer::Transfer;
use crate::replica::transfer::state_provider::send_chunk;
use crate::replica::write::handover::Handovers;
use crate::replica::write::records::Records;
use crate::{
    CacheConfig, CacheMember, CacheMode, ConsistentHash, Container, Interest, Segment, Topology, Version,
};

/// The topology arrives within a round trip. Callers send further commands again.
const DEFERRED_MAX: usize = 65_536;

/// As many as a caller may have under way.
const PARKED_MAX: usize = crate::cx::calls::CALLS_MAX;

pub(crate) struct CacheReplica {
    pub(crate) shared: Shared,
    pub(crate) transfer: Transfer,
    pub(crate) merge: Merge,
    pub(crate) deferred: VecDeque<(Address, Command)>,
    pub(crate) is_leaving: bool,
    pub(crate) iterations: Iterations,
    pub(crate) store: Store,
    pub(crate) listeners: Listeners,
    pub(crate) idle_probes: IdleProbes,
    pub(crate) handovers: Handovers,
}

pub(crate) struct Shared {
    pub(crate) id: CacheId,
    pub(crate) config: CacheConfig,
    pub(crate) member: CacheMember,
    pub(crate) container: Arc<Container>,
    pub(crate) installed: Option<Installed>,
    pub(crate) segments: Vec<SegmentState>,
    /// This member's state of its former partition, until it is merged.
    pub(crate) frozen: Option<PreMergeState>,
    /// Whether the cache has had an entry with a `max_idle` here; else no call asks.
    pub(crate) has_max_idle: bool,
}

pub(crate) struct Installed {
    pub(crate) topology: Topology,
    pub(crate) writes: ConsistentHash,
    pub(crate) listening: Vec<(Address, Interest)>,
    pub(crate) at: Time,
}

#[derive(Default)]
pub(crate) struct SegmentState {
    pub(crate) records: Records,
    pub(crate) history: SegmentHistory,
    pub(crate) count: u64,
    /// The last primary term whose primary has this member's records, or that this member has begun.
    pub(crate) handed: u32,
    pub(crate) resent: u32,
    pub(crate) missing: Vec<Address>,
    pub(crate) parked: Vec<(Address, Call)>,
    /// The version between both incarnations after a full restart: older than every write since, newer than
    /// the entries from before. It is set until all entries of the segment's first owner are here.
    pub(crate) begun_again: Option<Version>,
    /// The members without a report of their last uses, since they stopped returning entries.
    pub(crate) pending_last_uses: PendingLastUses,
}

impl SegmentState {
    pub(crate) fn is_open(&self) -> bool {
        self.missing.is_empty()
    }

    pub(crate) fn park(&mut self, cx: &mut Cx, from: &Address, call: Call) {
        if self.parked.len() < PARKED_MAX {
            self.parked.push((from.clone(), call));
        } else {
            cx.counters.overflowed += 1;
        }
    }
}

impl CacheReplica {
    pub(crate) fn new(config: CacheConfig, member: CacheMember, container: Arc<Container>) -> Self {
        Self {
            shared: Shared::new(config, member, container),
            transfer: Transfer::default(),
            merge: Merge::default(),
            deferred: VecDeque::new(),
            is_leaving: false,
            iterations: Iterations::default(),
            store: Store::default(),
            listeners: Listeners::default(),
            idle_probes: IdleProbes::default(),
            handovers: Handovers::default(),
        }
    }

    pub(crate) fn ask_coordinator(&self, cx: &mut Cx) {
        if self.is_leaving {
            self.shared.tell_coordinator(cx, ToCoordinator::Leave);
        } else if self.shared.installed.is_none() {
            let (config, member) = (self.shared.config.clone(), self.shared.member.clone());
            let restored = self.store.restored().map(Box::new);
            let join = ToCoordinator::Join { config, member, restored };
            self.shared.tell_coordinator(cx, join);
        }
    }

    pub(crate) fn handle(&mut self, cx: &mut Cx, from: &Address, command: Command) {
        if command.topology > self.shared.topology_id() {
            if self.deferred.len() < DEFERRED_MAX {
                cx.counters.deferred += 1;
                self.deferred.push_back((from.clone(), command));
            } else {
                cx.counters.overflowed += 1;
            }
            return;
        }
        if command.body.segment().is_some_and(|segment| segment.0 >= self.shared.config.segments) {
            cx.counters.malformed += 1;
            return;
        }
        self.carry_out(cx, from, command.topology, command.body);
    }

    fn carry_out(&mut self, cx: &mut Cx, from: &Address, topology: u32, body: Body) {
        let segments = self.shared.config.segments;
        let is_ours = |segment: Segment| segment.0 < segments;
        match body {
            Body::Call(call) => self.take_call(cx, from, topology, call),
            Body::Backup(backup) => {
                self.handle_backup(cx, from, topology, backup);
            }
            Body::Ack(mut ack) => {
                if cx.has(InjectedBug::AcksAddedUp) {
                    ack.epoch = u32::MAX;
                }
                cx.calls.ack(from, ack);
            }
            Body::Reply { number, reply } => self.handle_reply(cx, from, topology, number, reply),
            Body::Handover(all) => {
                for handed in all.into_iter().filter(|handed| is_ours(handed.segment)) {
                    self.handle_handover(cx, from, handed);
                }
            }
            Body::Settled(settled) => {
                let settled: Vec<Segment> = settled.into_iter().filter(|segment| is_ours(*segment)).collect();
                self.listeners.handle_mark(&self.shared, cx, from, topology, &settled);
                self.handovers.handle_settled(&mut self.shared, cx, from, topology, settled);
            }
            Body::Pull(pull) => self.send_chunk(cx, from, pull, Found::new()),
            Body::Chunk(chunk) => self.handle_chunk(cx, from, chunk),
            Body::Fetch(fetch) => {
                self.iterations.publish(&self.shared, &mut self.store, cx, from, fetch, Found::new());
            }
            Body::Fetched(fetched) => {
                self.iterations.handle_fetched(&self.shared, &self.store, cx, from, fetched, |id| {
                    self.listeners.of_walk(id)
                });
            }
            Body::Notify(tell) => {
                self.listeners.handle_notify(&self.shared, &mut self.iterations, cx, from, topology, tell);
            }
            Body::Idle { segment, key, version, number } => {
                self.handle_idle(cx, from, (segment, key), version, number);
            }
            Body::LastUse(used) => self.handle_used(cx, from, used),
            Body::LastUsesSent(mut segments) => {
                segments.retain(|segment| is_ours(*segment));
                if self.shared.handle_last_uses(from, &segments) {
                    self.ask_anew(cx);
                }
            }
            Body::HistoryUpdate { segment, history } => {
                self.shared.handle_history_update(from, topology, segment, &history);
            }
            // Commands that the node handles.
            Body::ToCoordinator(_)
            | Body::Memory { .. }
            | Body::Install { .. }
            | Body::Refused(_)
            | Body::Left
            | Body::StatusRequest { .. } => {}
        }
    }

    pub(crate) fn send_chunk(&mut self, cx: &mut Cx, from: &Address, pull: Pull, loaded: Found) {
        let is_listened = self.listeners.is_listened(&self.shared);
        send_chunk(&mut self.shared, &mut self.store, cx, from, pull, loaded, is_listened);
    }

    fn handle_chunk(&mut self, cx: &mut Cx, from: &Address, chunk: Chunk) {
        if let Some(side) = chunk.side {
            if self.merge.handle_collected(&self.shared, cx, from, side, chunk) {
                self.resume_merge(cx);
            }
        } else if self.transfer.take_chunk(&mut self.shared, &mut self.store, cx, from, chunk) {
            self.tell_when_stored(cx);
        }
    }

    pub(crate) fn tick(&mut self, cx: &mut Cx) {
        self.look_after(cx);
        self.handovers.tick_records(&mut self.shared, cx);
        if self.transfer.tick_transfer(&self.shared, cx) {
            self.tell_when_stored(cx);
        }
        self.store.tick_store(&mut self.shared, cx);
        if self.merge.tick_merge(&self.shared, cx) {
            self.resume_merge(cx);
        }
        self.iterations.tick_iterations(&self.shared, &self.store, cx, |id| self.listeners.of_walk(id));
        self.listeners.tick_listeners(&self.shared, cx);
        let late = self.idle_probes.take_late(cx.now);
        self.take_again(cx, late);
        self.ask_coordinator(cx);
    }

    pub(crate) fn ask_anew(&mut self, cx: &mut Cx) {
        let waiting = self.idle_probes.take_all();
        self.take_again(cx, waiting);
    }
}

impl Shared {
    fn new(config: CacheConfig, member: CacheMember, container: Arc<Container>) -> Self {
        let segments = (0..config.segments).map(|_| SegmentState::default()).collect();
        Self {
            id: config.id(),
            config,
            member,
            container,
            installed: None,
            segments,
            frozen: None,
            has_max_idle: false,
        }
    }

    pub(crate) fn topology(&self) -> Option<&Topology> {
        self.installed.as_ref().map(|installed| &installed.topology)
    }

    /// 0 without an installed topology.
    pub(crate) fn topology_id(&self) -> u32 {
        self.topology().map_or(0, |topology| topology.id)
    }

    pub(crate) fn state(&mut self, segment: Segment) -> &mut SegmentState {
        &mut self.segments[usize::from(segment.0)]
    }

    pub(crate) fn write_owners(&self, segment: Segment) -> impl Iterator<Item = &Address> {
        self.installed.iter().flat_map(move |installed| installed.writes.owners(segment))
    }

    pub(crate) fn primary(&self, segment: Segment) -> Option<&Address> {
        let writes = &self.installed.as_ref()?.writes;
        if self.is_invalidation() && writes.owners(segment).any(|owner| *owner == self.member.address) {
            return Some(&self.member.address);
        }
        writes.primary(segment)
    }

    pub(crate) fn is_primary(&self, local: &Address, segment: Segment) -> bool {
        self.primary(segment) == Some(local)
    }

    pub(crate) fn send(&self, cx: &mut Cx, to: &Address, body: Body) {
        cx.send(to, self.id, self.topology_id(), body);
    }

    pub(crate) fn is_local(&self) -> bool {
        self.config.mode == CacheMode::Local
    }

    pub(crate) fn tell_coordinator(&self, cx: &mut Cx, told: ToCoordinator) {
        if self.is_local() {
            return;
        }
        if let Some(coordinator) = cx.coordinator.clone() {
            self.send(cx, &coordinator, Body::ToCoordinator(told));
        }
    }
}
