//! One cache on one member: its view of the cluster, and the handling of each command.

pub(crate) mod events;
pub(crate) mod expiry;
pub(crate) mod install;
pub(crate) mod iterate;
pub(crate) mod merge;
pub(crate) mod store;
pub(crate) mod transfer;
pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use consort_group::{Address, Time};

use crate::command::{Body, CacheId, Call, Command, ToCoordinator};
use crate::history::SegmentHistory;
use crate::injected_bugs::InjectedBug;
use crate::node::Cx;
use crate::publication::{IterationId, ReduceFn, TransformFn};
use crate::replica::events::listeners::Listeners;
use crate::replica::expiry::last_use::PendingLastUses;
use crate::replica::expiry::max_idle::IdleProbes;
use crate::replica::iterate::reader::Iteration;
use crate::replica::merge::{Merge, PreMergeState};
use crate::replica::store::writes::Persistence;
use crate::replica::transfer::state_consumer::Transfer;
use crate::replica::write::records::Records;
use crate::{
    CacheConfig, CacheMember, CacheMode, ConsistentHash, Container, Interest, Segment, Topology, Version,
};

/// The limit of commands that wait for a topology, which arrives within a round trip. Commands beyond it are sent again by
/// their callers.
const DEFERRED_MAX: usize = 65_536;

/// The limit of calls that wait for the first commands of a new primary: as many as a caller may have under way.
const PARKED_MAX: usize = crate::node::calls::CALLS_MAX;

/// A cache on this member.
pub(crate) struct CacheReplica {
    /// The hash of the name, which each command of the cache has.
    pub(crate) id: CacheId,
    pub(crate) config: CacheConfig,
    pub(crate) member: CacheMember,
    pub(crate) container: Arc<Container>,
    pub(crate) installed: Option<Installed>,
    pub(crate) segments: Vec<SegmentState>,
    pub(crate) transfer: Transfer,
    pub(crate) merge: Merge,
    /// The state from before this member came back with entries of its own, which are kept until they are merged.
    pub(crate) frozen: Option<PreMergeState>,
    /// Commands of a later topology.
    pub(crate) deferred: VecDeque<(Address, Command)>,
    pub(crate) is_leaving: bool,
    pub(crate) iterations: BTreeMap<IterationId, Iteration>,
    pub(crate) transforms: BTreeMap<Arc<str>, Arc<TransformFn>>,
    pub(crate) reductions: BTreeMap<Arc<str>, Arc<ReduceFn>>,
    /// The names of functions that take long with an entry: they are applied outside the node.
    pub(crate) costly: BTreeSet<Arc<str>>,
    pub(crate) persistence: Option<Box<Persistence>>,
    pub(crate) listeners: Listeners,
    pub(crate) idle_probes: IdleProbes,
    /// The time to ask primaries for records of gone callers, if there may be such records.
    pub(crate) unsettled: Option<Time>,
}

/// A topology with values derived from it.
pub(crate) struct Installed {
    pub(crate) topology: Topology,
    pub(crate) writes: ConsistentHash,
    /// The members that receive events of every write, and which events.
    pub(crate) listening: Vec<(Address, Interest)>,
    /// The time at which it was installed.
    pub(crate) at: Time,
}

/// The state of a segment on a member, apart from its entries.
#[derive(Default)]
pub(crate) struct SegmentState {
    pub(crate) records: Records,
    /// The history of the segment that a merge needs, if a merge is possible.
    pub(crate) history: SegmentHistory,
    /// The number of writes that this member has ordered.
    pub(crate) count: u64,
    /// The last primary term whose primary has been sent this member's records, or that this member has begun itself.
    pub(crate) handed: u32,
    /// The last epoch in which this member's records have been sent to the other write owners.
    pub(crate) resent: u32,
    /// As a new primary: the owners whose records are missing.
    pub(crate) missing: Vec<Address>,
    /// Calls that wait for these records.
    pub(crate) parked: Vec<(Address, Call)>,
    /// After a full restart, the version between both incarnations: older than every write since, and newer than the entries
    /// from before. Set until all entries of the segment's first owner are here.
    pub(crate) begun_again: Option<Version>,
    /// As the primary: the members that stopped returning entries and have not yet reported their last uses.
    pub(crate) pending_last_uses: PendingLastUses,
}

impl SegmentState {
    /// Returns whether writes may be ordered.
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
        let segments = (0..config.segments).map(|_| SegmentState::default()).collect();
        Self {
            id: config.id(),
            config,
            member,
            container,
            installed: None,
            segments,
            transfer: Transfer::default(),
            merge: Merge::default(),
            frozen: None,
            deferred: VecDeque::new(),
            is_leaving: false,
            iterations: BTreeMap::new(),
            transforms: BTreeMap::new(),
            reductions: BTreeMap::new(),
            costly: BTreeSet::new(),
            persistence: None,
            listeners: Listeners::default(),
            idle_probes: IdleProbes::default(),
            unsettled: None,
        }
    }

    pub(crate) fn topology(&self) -> Option<&Topology> {
        self.installed.as_ref().map(|installed| &installed.topology)
    }

    /// Returns the id of the installed topology; 0 if there is none.
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

    /// Returns whether the cache concerns this member only.
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

    /// Asks the coordinator to add this member to the topology or to remove it, if the cache waits for that.
    pub(crate) fn ask_coordinator(&self, cx: &mut Cx) {
        if self.is_leaving {
            self.tell_coordinator(cx, ToCoordinator::Leave);
        } else if self.installed.is_none() {
            let (config, member) = (self.config.clone(), self.member.clone());
            let restored = self.restored().map(Box::new);
            let join = ToCoordinator::Join { config, member, restored };
            self.tell_coordinator(cx, join);
        }
    }

    /// Handles a command of another member, or of this one.
    pub(crate) fn handle(&mut self, cx: &mut Cx, from: &Address, command: Command) {
        if command.topology > self.topology_id() {
            if self.deferred.len() < DEFERRED_MAX {
                cx.counters.deferred += 1;
                self.deferred.push_back((from.clone(), command));
            } else {
                cx.counters.overflowed += 1;
            }
            return;
        }
        let segments = self.config.segments;
        let is_ours = |segment: Segment| segment.0 < segments;
        match command.body {
            Body::Call(call) => self.take_call(cx, from, command.topology, call),
            Body::Backup(backup) if is_ours(backup.segment) => {
                self.handle_backup(cx, from, command.topology, backup);
            }
            Body::Ack(mut ack) => {
                if cx.has(InjectedBug::AcksAddedUp) {
                    ack.epoch = u32::MAX;
                }
                cx.calls.ack(from, ack);
            }
            Body::Reply { number, reply } => self.handle_reply(cx, from, command.topology, number, reply),
            Body::Handover(all) => {
                for handed in all.into_iter().filter(|handed| is_ours(handed.segment)) {
                    self.handle_handover(cx, from, handed);
                }
            }
            Body::Settled(settled) => {
                let settled: Vec<Segment> = settled.into_iter().filter(|segment| is_ours(*segment)).collect();
                self.handle_mark(cx, from, command.topology, &settled);
                self.handle_settled(cx, from, command.topology, settled);
            }
            Body::Pull(pull) if is_ours(pull.segment) => self.handle_pull(cx, from, pull),
            Body::Chunk(chunk) if is_ours(chunk.segment) => self.handle_chunk(cx, from, chunk),
            Body::Fetch(fetch) => self.handle_fetch(cx, from, fetch),
            Body::Fetched(fetched) => self.handle_fetched(cx, from, fetched),
            Body::Notify(tell) if is_ours(tell.segment) => {
                self.handle_notify(cx, from, command.topology, tell);
            }
            Body::Idle { segment, key, version, number } if is_ours(segment) => {
                self.handle_idle(cx, from, (segment, key), version, number);
            }
            Body::LastUse(used) if is_ours(used.segment) => self.handle_used(cx, from, used),
            Body::LastUsesSent(mut segments) => {
                segments.retain(|segment| is_ours(*segment));
                self.handle_last_uses(cx, from, &segments);
            }
            Body::HistoryUpdate { segment, history } if is_ours(segment) => {
                self.handle_history_update(from, command.topology, segment, &history);
            }
            Body::Idle { .. }
            | Body::HistoryUpdate { .. }
            | Body::LastUse(_)
            | Body::Notify(_)
            | Body::Backup(_)
            | Body::Pull(_)
            | Body::Chunk(_) => cx.counters.malformed += 1,
            // Commands that the node handles.
            Body::ToCoordinator(_)
            | Body::Memory { .. }
            | Body::Install { .. }
            | Body::Refused(_)
            | Body::Left
            | Body::StatusRequest { .. } => {}
        }
    }

    /// Handles the deferred commands whose topology is installed now.
    pub(crate) fn handle_deferred(&mut self, cx: &mut Cx) {
        for (from, command) in std::mem::take(&mut self.deferred) {
            self.handle(cx, &from, command);
        }
    }
}
