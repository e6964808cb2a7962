//! The context that all caches of a member share: its address, its unfinished operations, and its frames to other members.

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
use crate::{Ballot, CacheConfig, OpenError, Topology};

/// How long a member of another partition receives no watermark of finished operations. By then it has noticed the partition,
/// and has taken over the unfinished operations there. Until then it keeps records of this member's writes in other caches,
/// even if it has closed this one.
const PARTITION_MEMORY: Duration = Duration::from_secs(60);

/// No cache: a report of memory concerns the member.
const NO_CACHE: CacheId = CacheId(0);

/// Segments that are requested at a time, from different senders if possible: enough to keep all senders busy. With
/// [`CHUNK_BYTES`] a receiver has 1 MB in flight, about 1 ms of a fast network.
pub(crate) const PULLS_MAX: u32 = 20;

/// Bytes of a chunk: those of a packet, if entries are not too small. Larger chunks would be fragmented and reassembled, and
/// commands would wait behind them.
pub(crate) const CHUNK_BYTES: u32 = 52 * 1024;

/// Bytes of segments in transfer to a member at a time, unless the member sets less.
pub const TRANSFER_BUDGET: u32 = PULLS_MAX * CHUNK_BYTES;

/// A frame for a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The member to send the frame to.
    pub dest: Address,
    /// The payload of a message.
    pub bytes: Bytes,
}

/// An event of a cache on this member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeEvent {
    /// A topology is installed. After the first one, the cache is usable.
    Installed {
        /// The cache.
        cache: CacheId,
        /// The topology's id.
        topology: u32,
    },
    /// The cluster has the cache with another configuration. It is closed here.
    Refused {
        /// The cache.
        cache: CacheId,
        /// The difference.
        error: OpenError,
    },
    /// An iteration whose last [`crate::Node::take`] returned nothing has items, its end, or an error.
    Fetched {
        /// The cache.
        cache: CacheId,
        /// The iteration.
        iteration: IterationId,
    },
    /// A listener now receives all changes, or a listener whose event queue was empty has events.
    Told {
        /// The cache.
        cache: CacheId,
        /// The listener.
        listener: ListenerId,
    },
    /// The response to a sequential reader is sent. The reader requests from no other member meanwhile, so its next request
    /// arrives soon if it continues.
    Expecting,
    /// No member depends on this one any more. The cache is closed here.
    Left {
        /// The cache.
        cache: CacheId,
    },
}

/// The part of a [`crate::Node`] that its caches use.
pub(crate) struct Cx {
    pub(crate) now: Time,
    pub(crate) local: Address,
    pub(crate) coordinator: Option<Address>,
    /// The ballot under which topologies are installed on this member.
    pub(crate) promised: Option<Ballot>,
    /// Members with another version of the wire protocol, and that version. Bounded by the view.
    pub(crate) foreigners: BTreeMap<Address, u8>,
    /// Caches that this member has ever been a member of. A closed cache stays, because other members may not have learnt of
    /// the close.
    pub(crate) memberships: BTreeSet<CacheId>,
    /// The ballot under which this member is coordinator, or asks whether it may be.
    pub(crate) leads: Ballot,
    pub(crate) calls: Calls,
    pub(crate) silence: Silence,
    pub(crate) watermarks: Watermarks,
    outbox: BTreeMap<Address, Outbox>,
    /// Members whose outbound queues are full: their reads wait.
    crowded: BTreeSet<Address>,
    /// The limit of bytes sent to a member before the room in its queue is checked again.
    burst: u64,
    pub(crate) responses: Responses,
    /// Members with frames to send, once each.
    waiting: Vec<Address>,
    /// Members of other partitions that may serve the same caches. Of operations finished here since the partition, only this
    /// member's owners there know.
    parted: BTreeMap<Address, (Time, BTreeSet<CacheId>)>,
    /// Commands of this member to itself.
    pub(crate) own_commands: VecDeque<Command>,
    pub(crate) events: VecDeque<NodeEvent>,
    /// The bytes of events that wait for readers of listeners, of all caches.
    pub(crate) waiting_events: WaitingEvents,
    /// Functions that are applied outside the node.
    pub(crate) computations: Computations,
    /// Requests to stores.
    pub(crate) store: VecDeque<(CacheId, StoreRequest)>,
    /// Custom merge policies by name.
    pub(crate) merges: BTreeMap<Arc<str>, Arc<MergeFn>>,
    pub(crate) counters: Counters,
    /// The memory use of this process, and of other members.
    pub(crate) memory: Memory,
    /// The size of a state transfer chunk in bytes.
    pub(crate) chunk_bytes: u32,
    /// The limit of requested chunks of a cache that have not arrived.
    pub(crate) pulls_max: usize,
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<InjectedBug>,
    /// The earliest expiry of the entries that were written since the last check.
    pub(crate) next_mortal: Option<Time>,
}

/// The frames to another member.
#[derive(Default)]
struct Outbox {
    frames: FrameWriter,
    /// The bytes that were written since the last check of the room.
    written: u64,
}

/// Counters of unusual events, for diagnosis.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Commands that waited for a topology.
    pub deferred: u64,
    /// Commands that were dropped because too many waited already. Their senders send them again.
    pub overflowed: u64,
    /// Operations that were sent again.
    pub repeated: u64,
    /// Reads of other members that waited for room for their responses.
    pub held: u64,
    /// Repeated reads of other members whose responses waited or were on their way: they are not answered again.
    pub answered_once: u64,
    /// Backup commands of an older epoch and calls of an older membership, which were not carried out.
    pub outdated: u64,
    /// Frames and commands that could not be read.
    pub malformed: u64,
    /// Commands of a later version, skipped.
    pub unknown: u64,
    /// Writes of callers that had gone, taken over by this member.
    pub adopted: u64,
    /// Writes that a store has not taken and that are not tried again, because too many were waiting. Their callers received an
    /// error.
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
            counters: Counters::default(),
            memory: Memory::default(),
            chunk_bytes: CHUNK_BYTES,
            pulls_max: PULLS_MAX as usize,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
            next_mortal: None,
        }
    }

    /// Notes the time at which an entry expires.
    pub(crate) fn note_expiry(&mut self, end: Time) {
        self.next_mortal = Some(self.next_mortal.map_or(end, |next| next.min(end)));
    }

    /// Returns whether this bug is injected into this member.
    #[cfg(feature = "injected-bugs")]
    pub(crate) fn has(&self, bug: InjectedBug) -> bool {
        self.injected_bug == Some(bug)
    }

    /// Returns false: without the feature, no bugs are injected.
    #[cfg(not(feature = "injected-bugs"))]
    #[inline(always)]
    pub(crate) fn has(&self, _: InjectedBug) -> bool {
        false
    }

    /// Sends a command to a member, or to this member itself.
    pub(crate) fn send(&mut self, to: &Address, cache: CacheId, topology: u32, body: Body) {
        if *to == self.local {
            self.own_commands.push_back(Command { cache, topology, body });
            return;
        }
        self.write_to(to, |frames| frames.push(cache, topology, &body));
    }

    /// Sends a topology to a member, as the coordinator.
    pub(crate) fn install(&mut self, to: &Address, cache: CacheId, topology: &Topology) {
        let (ballot, topology) = (self.leads.clone(), Box::new(topology.clone()));
        self.send(to, cache, 0, Body::Install { ballot, topology });
    }

    /// Sends a command that is already encoded, to another member.
    pub(crate) fn send_long(&mut self, to: &Address, command: LongCommand) {
        self.write_to(to, |frames| frames.push_long(command));
    }

    /// Appends to the frames for another member, and marks that it has frames to send.
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

    /// Notes whether there is room for a member now, and how many bytes it may be sent until the next call.
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

    /// Returns the next waiting read of a member, if there is room for its response.
    pub(crate) fn next_read(&mut self, from: &Address) -> Option<Command> {
        if self.crowded.contains(from) { None } else { self.responses.next(from) }
    }

    /// Returns whether a read of another member is not carried out now: it waits for room, or its response is on its way.
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

    /// Checks that a cache's merge policy is registered on this member.
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

    /// Returns the next frame to send.
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

    /// Returns the bytes of frames to a member that were not taken yet.
    pub(crate) fn unsent_bytes(&self, member: &Address) -> usize {
        self.outbox.get(member).map_or(0, |outbox| outbox.frames.len())
    }

    /// Drops frames and waiting reads of members that have gone.
    pub(crate) fn keep_outbox(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.outbox.retain(|dest, _| is_member(dest));
        self.crowded.retain(&is_member);
        self.responses.keep(&is_member);
        self.waiting.retain(is_member);
    }

    /// Notes that a cache continues without a member, which may serve it in another partition.
    pub(crate) fn mark_partitioned(&mut self, member: &Address, cache: CacheId) {
        let now = self.now;
        self.parted.retain(|_, (at, _)| now.since(*at) < PARTITION_MEMORY);
        let (at, caches) = self.parted.entry(member.clone()).or_default();
        *at = now;
        caches.insert(cache);
    }

    /// Notes that a member is in the same partition of the cache again; or that the cache is closed here, if no member is
    /// named.
    pub(crate) fn mark_rejoined(&mut self, member: Option<&Address>, cache: CacheId) {
        if self.parted.is_empty() {
            return;
        }
        self.parted.retain(|other, (_, caches)| {
            let is_met = member.is_none_or(|member| member == other) && caches.remove(&cache);
            !(is_met && caches.is_empty())
        });
    }

    /// Reports to the other members that a shortage of this one has begun or ended.
    pub(crate) fn tell_memory(&mut self) {
        let Some((others, shortage)) = self.memory.take_report() else { return };
        for other in others {
            self.send(&other, NO_CACHE, 0, Body::Memory { shortage: shortage.clone() });
        }
    }

    /// Handles a new view: reports a shortage to the members that are new in it.
    pub(crate) fn keep_view(&mut self, view: &View) {
        let others: Vec<Address> = view.members().iter().filter(|one| **one != self.local).cloned().collect();
        let Some((new, shortage)) = self.memory.keep_members(others) else { return };
        for member in new {
            self.send(&member, NO_CACHE, 0, Body::Memory { shortage: Some(shortage.clone()) });
        }
    }

    /// Notes the watermark of this member's own operations; those of other members arrive with frames.
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
