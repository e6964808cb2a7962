//! Pulling segments: a member that is to be an owner fetches what there is, chunk after chunk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use super::cache::{Cache, Installed};
use super::caller::present;
use super::cx::Cx;
use crate::command::{Body, Chunk, Pull, ToCoordinator};
use crate::planted::Planted;
use crate::topology::{Phase, Topology};
use crate::{ConsistentHash, Segment, SegmentState as ContainerState, Stored};

/// Segments that are pulled at a time, from different givers if there are: enough to keep them all busy. With
/// [`CHUNK_BYTES`] a receiver has a megabyte under way, a millisecond of a fast network.
pub(super) const PULLS_MAX: u32 = 20;

/// Bytes of a chunk: a packet's, with entries that are not too small. Larger ones would be cut into pieces and put together
/// again, and commands would wait behind them.
pub(super) const CHUNK_BYTES: u32 = 52 * 1024;

/// Bytes of segments that are on their way to a member at a time, unless it wants less.
pub const TRANSFER_BUDGET: u32 = PULLS_MAX * CHUNK_BYTES;

/// How long a chunk may take before it is asked for again.
pub(super) const PULL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What a member is pulling.
#[derive(Default)]
pub(crate) struct Transfer {
    /// Which rebalance it is for.
    pub(crate) rebalance: u32,
    todo: VecDeque<Segment>,
    active: BTreeMap<Segment, ActivePull>,
    /// Segments whose next chunk is asked for when memory is no longer critical.
    paused: Vec<Segment>,
    /// The last rebalance that was completed here.
    pub(crate) pulled: u32,
    /// What has come so far in this rebalance.
    pub(crate) bytes: u64,
    /// With what was restored, and with what has lost all who had it: the other owners of segments that are still to be pulled
    /// from, one after the other.
    others: BTreeMap<Segment, Vec<Address>>,
    /// Segments that have begun to come in this rebalance, and what the givers say they have.
    begun: (u64, u64),
    /// Keys that are here from an earlier life and have not come.
    pub(super) leftovers: BTreeMap<Segment, BTreeSet<Bytes>>,
}

struct ActivePull {
    from: Address,
    cursor: Option<(u64, u64)>,
    asked: Time,
    /// What has come of the segment, and what it has, once the giver has said that.
    bytes: (u64, Option<u64>),
}

impl Transfer {
    /// Segments that have not come yet.
    pub(crate) fn segments_left(&self) -> usize {
        self.todo.len() + self.active.len()
    }

    /// Bytes that have not come yet, about.
    pub(crate) fn bytes_left(&self) -> u64 {
        let left = |pull: &ActivePull| match pull.bytes {
            (come, Some(all)) => all.saturating_sub(come),
            (_, None) => self.average(),
        };
        let active = self.active.values().map(left).fold(0, u64::saturating_add);
        active.saturating_add(self.average().saturating_mul(self.todo.len() as u64))
    }

    /// The segments of which something has not come that members have who are read. Of others it may have all that is left.
    pub(super) fn lacking(&self, topology: &Topology) -> BTreeSet<Segment> {
        let waiting = self.todo.iter().chain(self.active.keys()).copied();
        let is_had =
            |segment: &Segment| topology.phase == Phase::ReadOldWriteAll && !topology.is_orphaned(*segment);
        waiting.filter(is_had).collect()
    }

    /// What a segment has that has not begun to come.
    fn average(&self) -> u64 {
        let (segments, bytes) = self.begun;
        bytes.checked_div(segments).unwrap_or(0)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.segments_left() > 0
    }

    fn end_pull(&mut self, segment: Segment) {
        self.active.remove(&segment);
        self.paused.retain(|paused| *paused != segment);
    }

    /// Segments of which a chunk is on its way.
    fn unpaused(&self) -> usize {
        self.active.len() - self.paused.len()
    }
}

/// The segments of which a member is the first owner, and the others of each.
fn others_of(hash: &ConsistentHash, local: &Address) -> BTreeMap<Segment, Vec<Address>> {
    let owned = hash.primary_segments_of(local);
    let others = owned.map(|segment| (segment, hash.owners(segment).skip(1).cloned().collect::<Vec<_>>()));
    others.filter(|(_, others)| !others.is_empty()).collect()
}

impl Cache {
    /// With a new topology: what is to be pulled, and from whom.
    pub(super) fn plan_transfer(&mut self, cx: &mut Cx) {
        let Some(installed) = &self.installed else { return };
        let topology = &installed.topology;
        let pending = match (topology.phase, &topology.pending) {
            (Phase::ReadOldWriteAll, Some(pending)) => Some(pending),
            (Phase::Restoring, _) => None,
            _ => {
                self.transfer = Transfer { pulled: self.transfer.pulled, ..Transfer::default() };
                return;
            }
        };
        if topology.rebalance != self.transfer.rebalance {
            let container = &self.container;
            let (rebalance, pulled) = (topology.rebalance, self.transfer.pulled);
            let mut transfer = Transfer { rebalance, pulled, ..Transfer::default() };
            match pending {
                Some(pending) => {
                    let is_received =
                        |segment: &Segment| container.state(*segment) == ContainerState::Receiving;
                    transfer.todo = pending.segments_of(&cx.local).filter(is_received).collect();
                }
                None => {
                    // All owners may have something that the others lack. The first one gets all of it.
                    transfer.others = others_of(&topology.current, &cx.local);
                    transfer.todo = transfer.others.keys().copied().collect();
                }
            }
            self.transfer = transfer;
        }
        // From those who are gone nothing comes any more.
        let lost: Vec<Segment> = self
            .transfer
            .active
            .iter()
            .filter(|(segment, pull)| !topology.givers(**segment).any(|owner| *owner == pull.from))
            .map(|(segment, _)| *segment)
            .collect();
        for segment in lost {
            self.transfer.end_pull(segment);
            self.transfer.todo.push_back(segment);
        }
        if self.transfer.pulled == self.transfer.rebalance {
            // A new coordinator may not have heard it.
            return self.tell_when_stored(cx);
        }
        self.pull_more(cx);
    }

    pub(super) fn tell_pulled(&self, cx: &mut Cx) {
        self.tell_coordinator(cx, ToCoordinator::Pulled { rebalance: self.transfer.pulled });
    }

    /// Segments that are pulled at a time. What is under way has no room beyond a limit of memory that is near.
    fn pulls_max(cx: &Cx) -> usize {
        if cx.memory.is_tight() { 1 } else { cx.pulls_max }
    }

    /// Whether the next chunk of a segment has to wait for memory.
    fn must_wait_for_memory(&self, cx: &Cx) -> bool {
        cx.memory.is_critical() || self.transfer.unpaused() > Self::pulls_max(cx)
    }

    fn pull_more(&mut self, cx: &mut Cx) {
        let mut waiting = Vec::new();
        while !cx.memory.is_critical() && self.transfer.active.len() < Self::pulls_max(cx) {
            let Some(segment) = self.transfer.todo.pop_front() else { break };
            if !self.pull_from_any(cx, segment, 0) {
                waiting.push(segment);
            }
        }
        self.transfer.todo.extend(waiting);
        self.tell_if_pulled(cx);
    }

    /// Begins a segment, with one of those who are read: another one at every attempt. False if all of them are away: what
    /// they have comes when a topology has them back.
    fn pull_from_any(&mut self, cx: &mut Cx, segment: Segment, attempt: usize) -> bool {
        let Some(Installed { topology, .. }) = &self.installed else { return false };
        let givers: Vec<&Address> = present(topology, topology.current.owners(segment)).collect();
        if topology.is_orphaned(segment) {
            // What had come to one of those who were to have it, all of them are to have.
            let heirs = topology.pending.iter().flat_map(|pending| pending.owners(segment));
            let heirs: Vec<&Address> = heirs.filter(|heir| **heir != self.member.address).collect();
            let new = || heirs.iter().map(|heir| (*heir).clone()).collect();
            let others = self.transfer.others.entry(segment).or_insert_with(new);
            others.retain(|other| heirs.contains(&other));
            if others.is_empty() {
                self.transfer.others.remove(&segment);
                return true;
            }
        } else if givers.is_empty() {
            return false;
        }
        let from = match self.transfer.others.get(&segment).and_then(|others| others.last()) {
            Some(other) => other.clone(),
            // By turns, so that givers share the work.
            None => givers[(usize::from(segment.0) + attempt) % givers.len()].clone(),
        };
        let pull = ActivePull { from, cursor: None, asked: cx.now, bytes: (0, None) };
        self.gather_leftovers(segment);
        self.ask(cx, segment, &pull);
        self.transfer.active.insert(segment, pull);
        true
    }

    fn ask(&self, cx: &mut Cx, segment: Segment, pull: &ActivePull) {
        let body = Pull {
            rebalance: self.transfer.rebalance,
            side: None,
            segment,
            cursor: pull.cursor,
            bytes_max: cx.chunk_bytes,
        };
        self.send(cx, &pull.from, Body::Pull(body));
    }

    fn tell_if_pulled(&mut self, cx: &mut Cx) {
        let transfer = &mut self.transfer;
        if transfer.rebalance > 0 && !transfer.is_active() && transfer.pulled < transfer.rebalance {
            transfer.pulled = transfer.rebalance;
            self.tell_when_stored(cx);
        }
    }

    /// Asks again for chunks that should have come.
    pub(crate) fn look_after_transfer(&mut self, cx: &mut Cx) {
        if self.transfer.is_active() && cx.memory.is_critical() {
            return;
        }
        while self.transfer.unpaused() < Self::pulls_max(cx)
            && let Some(segment) = self.transfer.paused.pop()
        {
            self.ask_again(cx, segment);
        }
        if self.transfer.active.is_empty() && !self.transfer.todo.is_empty() {
            self.pull_more(cx);
        }
        let late: Vec<Segment> = self
            .transfer
            .active
            .iter()
            .filter(|(segment, pull)| {
                cx.now.since(pull.asked) >= PULL_AGAIN_AFTER && !self.transfer.paused.contains(segment)
            })
            .map(|(segment, _)| *segment)
            .collect();
        for segment in late {
            self.transfer.active.remove(&segment);
            if !self.pull_from_any(cx, segment, 1) {
                self.transfer.todo.push_back(segment);
            }
        }
        self.tell_if_pulled(cx);
    }

    /// A segment has come from one of those who have something of it.
    fn note_pulled_from(&mut self, segment: Segment) {
        if let Some(others) = self.transfer.others.get_mut(&segment) {
            others.pop();
            if others.is_empty() {
                self.transfer.others.remove(&segment);
            } else {
                self.transfer.todo.push_back(segment);
            }
        }
    }

    /// Goes on with a segment that had to wait.
    pub(super) fn ask_again(&mut self, cx: &mut Cx, segment: Segment) {
        let Some(pull) = self.transfer.active.get_mut(&segment) else { return };
        pull.asked = cx.now;
        let pull = ActivePull { from: pull.from.clone(), ..*pull };
        self.ask(cx, segment, &pull);
    }

    /// A chunk has come.
    pub(super) fn handle_chunk(&mut self, cx: &mut Cx, from: &Address, chunk: Chunk) {
        if let Some(side) = chunk.side {
            return self.handle_collected(cx, from, side, chunk);
        }
        let Chunk { rebalance, segment, mut entries, next, past, is_refused, segment_bytes, .. } = chunk;
        let transfer = &mut self.transfer;
        if rebalance != transfer.rebalance
            || transfer.active.get(&segment).is_none_or(|pull| pull.from != *from)
        {
            return;
        }
        if is_refused {
            // It will be asked for again, after a while: whoever refuses lacks a topology or has a later one.
            return;
        }
        let come = entries.content_bytes() as u64;
        transfer.bytes += come;
        if let Some(pull) = transfer.active.get_mut(&segment) {
            pull.bytes.0 += come;
            if pull.bytes.1.replace(segment_bytes).is_none() {
                let (segments, bytes) = &mut transfer.begun;
                (*segments, *bytes) = (*segments + 1, bytes.saturating_add(segment_bytes));
                self.container.expect(segment, entries.count_in(segment_bytes));
            }
        }
        if cx.has(Planted::AgeForgotten) {
            let forgotten = |(key, stored)| (key, Stored { age: Duration::ZERO, ..stored });
            entries = entries.parts().map(forgotten).collect();
        }
        self.note_come(segment, entries.iter().map(|copy| copy.key));
        if cx.has(Planted::ChunkOverwrites) {
            for (key, stored) in entries.parts() {
                let _ = self.container.put(segment, &key, stored.into_entry(cx.now), cx.now);
            }
        } else {
            self.put_copies(cx, segment, &entries);
        }
        if let Some(past) = past {
            self.state(segment).past.learn(&past);
        }
        let next = next.filter(|_| !cx.has(Planted::LastChunkLost));
        match (next, self.transfer.active.get_mut(&segment)) {
            (Some(next), Some(pull)) => {
                pull.cursor = Some(next);
                pull.asked = cx.now;
                if self.must_wait_for_memory(cx) {
                    self.transfer.paused.push(segment);
                } else if !self.must_pause(segment) {
                    self.ask_again(cx, segment);
                }
            }
            _ => {
                self.transfer.end_pull(segment);
                self.give_up_leftovers(cx, segment);
                self.note_pulled_from(segment);
                self.pull_more(cx);
            }
        }
    }
}
