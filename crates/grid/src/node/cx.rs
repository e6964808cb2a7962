//! What all caches of a member share: who it is, what it has under way, and what it says to others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Time};

use super::calls::Calls;
use super::computations::Computations;
use super::memory::Memory;
use super::records::Watermarks;
use super::responses::{Held, Responses};
use super::silence::Silence;
use super::waiting_events::WaitingEvents;
use super::{Frame, NodeEvent};
use crate::command::{Body, CacheId, Call, Command};
use crate::merge::{MergeFn, MergePolicy};
use crate::persistence::StoreRequest;
use crate::planted::Planted;
use crate::wire::{FrameWriter, LongCommand};
use crate::{Ballot, CacheConfig, OpenError, Topology};

/// How long who has parted is told nothing of what is finished: by then it has noticed, and has taken over what was unfinished
/// there. Until then it keeps records of our writes in other caches, if it has this one no more.
const PARTED_FOR: Duration = Duration::from_secs(60);

/// The part of a [`super::Node`] that its caches use.
pub(crate) struct Cx {
    pub(crate) now: Time,
    pub(crate) local: Address,
    pub(crate) coordinator: Option<Address>,
    /// The ballot under which topologies are installed here.
    pub(crate) promised: Option<Ballot>,
    /// Members that speak another version of the wire, and which. Bounded by the view.
    pub(crate) foreigners: BTreeMap<Address, u8>,
    /// Caches that this member has ever been a member of. One is kept when it is closed: others may not have heard of that.
    pub(crate) memberships: BTreeSet<CacheId>,
    /// The ballot under which this member leads, or asks whether it may.
    pub(crate) leads: Ballot,
    pub(crate) calls: Calls,
    pub(crate) silence: Silence,
    pub(crate) watermarks: Watermarks,
    outbox: BTreeMap<Address, Outbox>,
    /// Members for which there is no room: their reads wait.
    crowded: BTreeSet<Address>,
    /// Bytes that a member is sent before it is known again whether there is room.
    burst: u64,
    pub(crate) responses: Responses,
    /// For whom there is something, once each.
    waiting: Vec<Address>,
    /// Members that caches have gone on without while these may have done the same. What was finished here since then is not known
    /// there to any owner but us.
    parted: BTreeMap<Address, (Time, BTreeSet<CacheId>)>,
    /// Commands to ourselves.
    pub(crate) inner: VecDeque<Command>,
    pub(crate) events: VecDeque<NodeEvent>,
    /// Bytes that wait for readers of listeners, of all caches.
    pub(crate) waiting_events: WaitingEvents,
    /// Functions that are to be applied outside the node.
    pub(crate) computations: Computations,
    /// What stores are to do.
    pub(crate) store: VecDeque<(CacheId, StoreRequest)>,
    /// Custom merge policies by their names.
    pub(crate) merges: BTreeMap<Arc<str>, Arc<MergeFn>>,
    pub(crate) counters: Counters,
    /// The memory of this process, and of others.
    pub(crate) memory: Memory,
    /// Bytes of a chunk of a transfer.
    pub(crate) chunk_bytes: u32,
    /// Chunks of a cache that may be on their way here.
    pub(crate) pulls_max: usize,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<Planted>,
    /// When the first of those entries expires that were written since this was last looked at.
    pub(crate) next_mortal: Option<Time>,
}

/// What is to be sent to another member.
#[derive(Default)]
struct Outbox {
    frames: FrameWriter,
    /// Bytes that were written since it was known that there is room.
    written: u64,
}

/// What was unusual, for people who look for causes.
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
    /// Writes whose callers had gone, taken over.
    pub adopted: u64,
    /// Writes that a store has not taken and that are not tried again: too many were. Their callers were told.
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
            inner: VecDeque::new(),
            events: VecDeque::new(),
            waiting_events: WaitingEvents::default(),
            computations: Computations::default(),
            store: VecDeque::new(),
            merges: BTreeMap::new(),
            counters: Counters::default(),
            memory: Memory::default(),
            chunk_bytes: super::transfer::CHUNK_BYTES,
            pulls_max: super::transfer::PULLS_MAX as usize,
            #[cfg(feature = "planted")]
            planted: None,
            next_mortal: None,
        }
    }

    /// An entry expires then.
    pub(crate) fn note_mortal(&mut self, end: Time) {
        self.next_mortal = Some(self.next_mortal.map_or(end, |next| next.min(end)));
    }

    /// Whether this member has been given the bug.
    #[cfg(feature = "planted")]
    pub(crate) fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    /// Nobody has a bug on purpose.
    #[cfg(not(feature = "planted"))]
    #[inline(always)]
    pub(crate) fn has(&self, _: Planted) -> bool {
        false
    }

    /// Says something to a member, perhaps to ourselves.
    pub(crate) fn send(&mut self, to: &Address, cache: CacheId, topology: u32, body: Body) {
        if *to == self.local {
            self.inner.push_back(Command { cache, topology, body });
            return;
        }
        self.write_to(to, |frames| frames.push(cache, topology, &body));
    }

    /// As the coordinator: gives a member a topology.
    pub(crate) fn install(&mut self, to: &Address, cache: CacheId, topology: &Topology) {
        let (ballot, topology) = (self.leads.clone(), Box::new(topology.clone()));
        self.send(to, cache, 0, Body::Install { ballot, topology });
    }

    /// Sends a command that has been written already, to another member.
    pub(crate) fn send_long(&mut self, to: &Address, command: LongCommand) {
        self.write_to(to, |frames| frames.push_long(command));
    }

    /// Adds to another member's frames, for which it will be asked.
    pub(super) fn write_to(&mut self, to: &Address, add: impl FnOnce(&mut FrameWriter)) {
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

    /// Whether there is room for a member now, and how many bytes it may be sent until this is called again.
    pub(super) fn set_room(&mut self, member: &Address, is_open: bool, burst: u64) {
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

    /// The next read of a member that waits, if there is room for its response.
    pub(super) fn next_read(&mut self, from: &Address) -> Option<Command> {
        if self.crowded.contains(from) { None } else { self.responses.next(from) }
    }

    /// Whether a read of another member is not carried out now: it waits for room, or its response is on its way.
    pub(super) fn holds_read(&mut self, from: &Address, cache: CacheId, topology: u32, call: &Call) -> bool {
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

    /// Whether a cache's merge policy is known here.
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

    /// The next frame for somebody.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        let all = self.calls.finished_below();
        while let Some(dest) = self.waiting.last() {
            let is_parted = |(at, _): &(Time, _)| self.now.since(*at) < PARTED_FOR;
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

    /// Bytes of frames to a member that were not taken yet.
    pub(super) fn unsent_bytes(&self, member: &Address) -> usize {
        self.outbox.get(member).map_or(0, |outbox| outbox.frames.len())
    }

    /// What there was for members that have gone goes with them.
    pub(crate) fn keep_outbox(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.outbox.retain(|dest, _| is_member(dest));
        self.crowded.retain(&is_member);
        self.responses.keep(&is_member);
        self.waiting.retain(is_member);
    }

    /// A cache has gone on without a member, which may have done so, too.
    pub(crate) fn part_from(&mut self, member: &Address, cache: CacheId) {
        let now = self.now;
        self.parted.retain(|_, (at, _)| now.since(*at) < PARTED_FOR);
        let (at, caches) = self.parted.entry(member.clone()).or_default();
        *at = now;
        caches.insert(cache);
    }

    /// A member has the cache with us again; or the cache is closed here, if none is named.
    pub(crate) fn meet_again(&mut self, member: Option<&Address>, cache: CacheId) {
        if self.parted.is_empty() {
            return;
        }
        self.parted.retain(|other, (_, caches)| {
            let is_met = member.is_none_or(|member| member == other) && caches.remove(&cache);
            !(is_met && caches.is_empty())
        });
    }

    /// Our own operations finish where we are; those of others are heard of.
    pub(crate) fn note_own_watermark(&mut self) {
        let (local, finished) = (self.local.clone(), self.calls.finished_below());
        self.watermarks.heard(&local, finished);
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;
    use crate::Segment;
    use crate::node::calls::InFlight;
    use crate::wire::FrameReader;

    fn told(cx: &mut Cx, to: &Address) -> u64 {
        cx.send(to, CacheId(1), 1, Body::UsesTold(Vec::new()));
        FrameReader::new(cx.next_frame().unwrap().bytes).unwrap().finished
    }

    #[test]
    fn who_has_parted_is_not_told_what_is_finished_until_all_caches_have_met_again_or_for_a_while() {
        let [local, other, third] = [0, 1, 2].map(|least| Address::Uuid(Uuid { most: 0, least }));
        let mut cx = Cx::new(local);
        let call = InFlight::new(
            CacheId(1),
            Segment(0),
            bytes::Bytes::new(),
            InFlight::nothing(),
            Time::ZERO,
            Duration::ZERO,
        );
        let number = cx.calls.open(call);
        cx.calls.finish(number, Err(crate::OperationError::Closed));
        let finished = told(&mut cx, &other);
        assert!(finished > 0);
        cx.part_from(&other, CacheId(1));
        cx.part_from(&other, CacheId(2));
        assert_eq!([told(&mut cx, &other), told(&mut cx, &third)], [0, finished]);
        cx.meet_again(Some(&other), CacheId(1));
        assert_eq!(told(&mut cx, &other), 0);
        cx.meet_again(None, CacheId(2));
        assert_eq!(told(&mut cx, &other), finished);
        cx.part_from(&other, CacheId(1));
        cx.now = Time::ZERO + PARTED_FOR;
        assert_eq!(told(&mut cx, &other), finished, "it may have closed the cache");
    }
}
