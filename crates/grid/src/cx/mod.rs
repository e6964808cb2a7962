//! The context that all caches of a member share.

pub(crate) mod calls;
pub(crate) mod computations;
pub(crate) mod memory;
pub(crate) mod response_window;
pub(crate) mod responses;
pub(crate) mod silence;
pub(crate) mod waiting_events;
pub(crate) mod watermarks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time, View};

use crate::command::{Body, Call, Command};
use crate::config::{CacheId, MergePolicy};
use crate::cx::calls::Calls;
use crate::cx::computations::Computations;
use crate::cx::memory::Memory;
use crate::cx::responses::{Held, Responses};
use crate::cx::silence::Silence;
use crate::cx::waiting_events::WaitingEvents;
use crate::cx::watermarks::Watermarks;
use crate::event::ListenerId;
use crate::injected_bugs::InjectedBug;
use crate::merge::MergeFn;
use crate::persistence::StoreRequest;
use crate::publication::IterationId;
use crate::wire::{FrameWriter, LongCommand};
use crate::{Ballot, CacheConfig, OpenError, Rebalancing, Topology};

/// By this time a member of another partition, which receives no watermark, has taken over the unfinished
/// operations; until then it keeps records of this member's writes in all caches, even closed ones.
const PARTITION_MEMORY: Duration = Duration::from_secs(60);

/// A report of memory concerns no cache.
const NO_CACHE: CacheId = CacheId(0);

/// Segments requested at a time, enough to keep all senders busy. With [`CHUNK_BYTES`] 1 MB is in flight,
/// about 1 ms of a fast network.
pub(crate) const PULLS_MAX: u32 = 20;

/// A packet's bytes: larger chunks would be fragmented, and commands would wait behind them.
pub(crate) const CHUNK_BYTES: u32 = 52 * 1024;

/// The default bytes of segments in transfer to a member at a time.
pub const TRANSFER_BUDGET: u32 = PULLS_MAX * CHUNK_BYTES;

/// A frame for a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The receiving member.
    pub dest: Address,
    /// The message's payload.
    pub bytes: Bytes,
}

/// An event of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeEvent {
    /// A topology is installed. After the first one, the cache is usable.
    Installed {
        /// The cache.
        cache: CacheId,
        /// The topology's id.
        topology: u32,
    },
    /// The cluster has another configuration; the cache is closed here.
    Refused {
        /// The cache.
        cache: CacheId,
        /// The difference.
        error: OpenError,
    },
    /// After an empty [`crate::Node::take`], an iteration has items, its end or an error.
    Fetched {
        /// The cache.
        cache: CacheId,
        /// The iteration.
        iteration: IterationId,
    },
    /// A listener is ready, or its empty queue has events.
    Told {
        /// The cache.
        cache: CacheId,
        /// The listener.
        listener: ListenerId,
    },
    /// The response to a sequential reader is sent. If it continues, its next request arrives soon, because
    /// it requests from no other member.
    Expecting,
    /// No member depends on this one any more; the cache is closed here.
    Left {
        /// The cache.
        cache: CacheId,
    },
}

pub(crate) struct Cx {
    pub(crate) now: Time,
    pub(crate) local: Address,
    pub(crate) coordinator: Option<Address>,
    pub(crate) promised: Option<Ballot>,
    /// Wire versions of incompatible members, bounded by the view.
    pub(crate) foreigners: BTreeMap<Address, u8>,
    /// A closed cache stays, because other members may not have learnt of the close.
    pub(crate) memberships: BTreeSet<CacheId>,
    /// The ballot as coordinator, or candidate.
    pub(crate) leads: Ballot,
    pub(crate) calls: Calls,
    pub(crate) silence: Silence,
    pub(crate) watermarks: Watermarks,
    outbox: BTreeMap<Address, Outbox>,
    /// Members with full outbound queues: their reads wait.
    crowded: BTreeSet<Address>,
    /// The limit of bytes to a member between two checks of its room.
    burst: u64,
    pub(crate) responses: Responses,
    waiting: Vec<Address>,
    /// Members of other partitions that may serve the same caches. Only this member's owners there know of
    /// operations finished here.
    parted: BTreeMap<Address, (Time, BTreeSet<CacheId>)>,
    pub(crate) own_commands: VecDeque<Command>,
    pub(crate) events: VecDeque<NodeEvent>,
    pub(crate) waiting_events: WaitingEvents,
    pub(crate) computations: Computations,
    pub(crate) store: VecDeque<(CacheId, StoreRequest)>,
    pub(crate) merges: BTreeMap<Arc<str>, Arc<MergeFn>>,
    pub(crate) rebalancing: Rebalancing,
    /// Whether all members are about to leave: their caches end when all have asked to, and no entry is moved before.
    pub(crate) is_cluster_stopping: bool,
    pub(crate) counters: Counters,
    pub(crate) memory: Memory,
    pub(crate) chunk_bytes: u32,
    pub(crate) pulls_max: usize,
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<InjectedBug>,
    /// The earliest expiry of entries written since the last check.
    pub(crate) next_mortal: Option<Time>,
}

#[derive(Default)]
struct Outbox {
    frames: FrameWriter,
    written: u64,
}

/// Counters of unusual events.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Commands that waited for a topology.
    pub deferred: u64,
    /// Commands dropped because too many waited; their senders repeat them.
    pub overflowed: u64,
    /// Operations sent again.
    pub repeated: u64,
    /// Other members' reads that waited for room.
    pub held: u64,
    /// Repeated reads whose response waited or was on its way.
    pub answered_once: u64,
    /// Outdated backup commands and calls, not carried out.
    pub outdated: u64,
    /// Unreadable frames and commands.
    pub malformed: u64,
    /// Skipped commands of a later version.
    pub unknown: u64,
    /// Gone callers' writes taken over.
    pub adopted: u64,
    /// Refused writes not tried again, because too many waited; their callers received an error.
    pub unsaved: u64,
}

impl Cx {
    pub(crate) fn new(local: Address) -> Self {
        Self {
            now: Time::ZERO,
            leads: Ballot { number: 0, by: local.clone() },
            local,
            coordinator: None,
            promised: None,
            foreigners: BTreeMap::new(),
            memberships: BTreeSet::new(),
            calls: Calls::default(),
            silence: Silence::default(),
            watermarks: Watermarks::default(),
            outbox: BTreeMap::new(),
            crowded: BTreeSet::new(),
            burst: u64::MAX,
            responses: Responses::default(),
            waiting: Vec::new(),
            parted: BTreeMap::new(),
            own_commands: VecDeque::new(),
            events: VecDeque::new(),
            waiting_events: WaitingEvents::default(),
            computations: Computations::default(),
            store: VecDeque::new(),
            merges: BTreeMap::new(),
            rebalancing: Rebalancing::default(),
            is_cluster_stopping: false,
            counters: Counters::default(),
            memory: Memory::default(),
            chunk_bytes: CHUNK_BYTES,
            pulls_max: PULLS_MAX as usize,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
            next_mortal: None,
        }
    }

    pub(crate) fn note_expiry(&mut self, end: Time) {
        self.next_mortal = Some(self.next_mortal.map_or(end, |next| next.min(end)));
    }

    #[cfg(feature = "injected-bugs")]
    pub(crate) fn has(&self, bug: InjectedBug) -> bool {
        self.injected_bug == Some(bug)
    }

    #[cfg(not(feature = "injected-bugs"))]
    #[inline(always)]
    pub(crate) fn has(&self, _: InjectedBug) -> bool {
        false
    }

    pub(crate) fn send(&mut self, to: &Address, cache: CacheId, topology: u32, body: Body) {
        if *to == self.local {
            self.own_commands.push_back(Command { cache, topology, body });
            return;
        }
        self.write_to(to, |frames| frames.push(cache, topology, &body));
    }

    pub(crate) fn install(&mut self, to: &Address, cache: CacheId, topology: &Topology) {
        let (ballot, topology) = (self.leads.clone(), Box::new(topology.clone()));
        self.send(to, cache, 0, Body::Install { ballot, topology });
    }

    pub(crate) fn send_long(&mut self, to: &Address, command: LongCommand) {
        self.write_to(to, |frames| frames.push_long(command));
    }

    pub(crate) fn write_to(&mut self, to: &Address, add: impl FnOnce(&mut FrameWriter)) {
        let outbox = match self.outbox.get_mut(to) {
            Some(outbox) => outbox,
            None => self.outbox.entry(to.clone()).or_default(),
        };
        if outbox.frames.is_empty() {
            self.waiting.push(to.clone());
        }
        let before = outbox.frames.len();
        add(&mut outbox.frames);
        outbox.written += (outbox.frames.len() - before) as u64;
        if outbox.written >= self.burst {
            self.crowded.insert(to.clone());
        }
    }

    pub(crate) fn set_room(&mut self, member: &Address, is_open: bool, burst: u64) {
        self.burst = burst;
        let written = self.outbox.get_mut(member).map_or(0, |outbox| {
            outbox.written = outbox.frames.len() as u64;
            outbox.written
        });
        if is_open && written < burst {
            self.crowded.remove(member);
        } else if !self.crowded.contains(member) {
            self.crowded.insert(member.clone());
        }
    }

    pub(crate) fn next_read(&mut self, from: &Address) -> Option<Command> {
        if self.crowded.contains(from) { None } else { self.responses.next(from) }
    }

    pub(crate) fn holds_read(&mut self, from: &Address, cache: CacheId, topology: u32, call: &Call) -> bool {
        if call.is_repeated && self.responses.is_answered(from, call.number, self.now) {
            self.counters.answered_once += 1;
            return true;
        }
        if self.crowded.is_empty() || !self.crowded.contains(from) {
            return false;
        }
        match self.responses.hold(from, cache, topology, call) {
            Held::Waits => self.counters.held += 1,
            Held::IsRepeated => self.counters.answered_once += 1,
            Held::IsDropped => self.counters.overflowed += 1,
        }
        true
    }

    pub(crate) fn knows_merge(&self, config: &CacheConfig) -> Result<(), OpenError> {
        match &config.merge {
            MergePolicy::Custom(name) if !self.merges.contains_key(name) => Err(OpenError::Invalid {
                cache: config.name.clone(),
                setting: "merge".into(),
                value: format!("{name}, which is not registered").into(),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        let all = self.calls.finished_below();
        while let Some(dest) = self.waiting.last() {
            let is_parted = |(at, _): &(Time, _)| self.now.since(*at) < PARTITION_MEMORY;
            let finished = if self.parted.get(dest).is_some_and(is_parted) { 0 } else { all };
            if let Some(bytes) = self.outbox.get_mut(dest).and_then(|outbox| outbox.frames.next(finished)) {
                return Some(Frame { dest: dest.clone(), bytes });
            }
            self.waiting.pop();
        }
        None
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.waiting.iter().any(|dest| self.outbox.get(dest).is_some_and(|outbox| !outbox.frames.is_empty()))
    }

    pub(crate) fn unsent_bytes(&self, member: &Address) -> usize {
        self.outbox.get(member).map_or(0, |outbox| outbox.frames.len())
    }

    pub(crate) fn keep_outbox(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.outbox.retain(|dest, _| is_member(dest));
        self.crowded.retain(&is_member);
        self.responses.keep(&is_member);
        self.waiting.retain(is_member);
    }

    /// The member may serve the cache in another partition.
    pub(crate) fn mark_partitioned(&mut self, member: &Address, cache: CacheId) {
        let now = self.now;
        self.parted.retain(|_, (at, _)| now.since(*at) < PARTITION_MEMORY);
        let (at, caches) = self.parted.entry(member.clone()).or_default();
        *at = now;
        caches.insert(cache);
    }

    /// Without a member, the cache is closed here.
    pub(crate) fn mark_rejoined(&mut self, member: Option<&Address>, cache: CacheId) {
        if self.parted.is_empty() {
            return;
        }
        self.parted.retain(|other, (_, caches)| {
            let is_met = member.is_none_or(|member| member == other) && caches.remove(&cache);
            !(is_met && caches.is_empty())
        });
    }

    pub(crate) fn tell_memory(&mut self) {
        let Some((others, shortage)) = self.memory.take_report() else { return };
        for other in others {
            self.send(&other, NO_CACHE, 0, Body::Memory { shortage: shortage.clone() });
        }
    }

    /// New members of the view receive the report of a shortage.
    pub(crate) fn keep_view(&mut self, view: &View) {
        let others: Vec<Address> = view.members().iter().filter(|one| **one != self.local).cloned().collect();
        let Some((new, shortage)) = self.memory.keep_members(others) else { return };
        for member in new {
            self.send(&member, NO_CACHE, 0, Body::Memory { shortage: Some(shortage.clone()) });
        }
    }

    pub(crate) fn record_own_watermark(&mut self) {
        let (local, finished) = (self.local.clone(), self.calls.finished_below());
        self.watermarks.heard(&local, finished);
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;
    use crate::Segment;
    use crate::cx::calls::InFlight;
    use crate::wire::FrameReader;

    fn told(cx: &mut Cx, to: &Address) -> u64 {
        cx.send(to, CacheId(1), 1, Body::LastUsesSent(Vec::new()));
        FrameReader::new(cx.next_frame().unwrap().bytes).unwrap().finished
    }

    #[test]
    fn watermarks_are_withheld_from_departed_members_until_all_caches_merge_or_60s() {
        let [local, other, third] = [0, 1, 2].map(|least| Address::Uuid(Uuid { most: 0, least }));
        let mut cx = Cx::new(local);
        let call = InFlight::new(
            CacheId(1),
            Segment(0),
            Bytes::new(),
            InFlight::nothing(),
            Time::ZERO,
            Duration::ZERO,
        );
        let number = cx.calls.open(call);
        cx.calls.finish(number, Err(crate::OperationError::Closed));
        let finished = told(&mut cx, &other);
        assert!(finished > 0);
        cx.mark_partitioned(&other, CacheId(1));
        cx.mark_partitioned(&other, CacheId(2));
        assert_eq!([told(&mut cx, &other), told(&mut cx, &third)], [0, finished]);
        cx.mark_rejoined(Some(&other), CacheId(1));
        assert_eq!(told(&mut cx, &other), 0);
        cx.mark_rejoined(None, CacheId(2));
        assert_eq!(told(&mut cx, &other), finished);
        cx.mark_partitioned(&other, CacheId(1));
        cx.now = Time::ZERO + PARTITION_MEMORY;
        assert_eq!(told(&mut cx, &other), finished, "it may have closed the cache");
    }
}
