//! The receiving side of a state transfer: a new owner requests its segments, chunk after chunk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use super::cache::{Cache, Installed};
use super::caller::present;
use super::cx::Cx;
use crate::command::{Body, Chunk, Pull, ToCoordinator};
use crate::injected_bugs::InjectedBug;
use crate::topology::{Phase, Topology};
use crate::{ConsistentHash, Segment, SegmentState as ContainerState, Stored};

/// Segments that are requested at a time, from different senders if possible: enough to keep all senders busy. With
/// [`CHUNK_BYTES`] a receiver has 1 MB in flight, about 1 ms of a fast network.
pub(super) const PULLS_MAX: u32 = 20;

/// Bytes of a chunk: those of a packet, if entries are not too small. Larger chunks would be fragmented and reassembled, and
/// commands would wait behind them.
pub(super) const CHUNK_BYTES: u32 = 52 * 1024;

/// Bytes of segments in transfer to a member at a time, unless the member sets less.
pub const TRANSFER_BUDGET: u32 = PULLS_MAX * CHUNK_BYTES;

/// The time after which a chunk is requested again.
pub(super) const PULL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The inbound state transfer of a member.
#[derive(Default)]
pub(crate) struct Transfer {
    /// The rebalance of this transfer.
    pub(crate) rebalance: u32,
    todo: VecDeque<Segment>,
    active: BTreeMap<Segment, ActivePull>,
    /// Segments whose next chunk is requested when memory is no longer critical.
    paused: Vec<Segment>,
    /// The last rebalance that is complete here.
    pub(crate) pulled: u32,
    /// Bytes received in this rebalance.
    pub(crate) bytes: u64,
    /// The other owners that each segment is still to be requested from, one after the other. For a cold start, and for segments
    /// that have lost all owners with all of their entries.
    others: BTreeMap<Segment, Vec<Address>>,
    /// Segments whose transfer has begun in this rebalance, and the bytes that the senders report for them.
    begun: (u64, u64),
    /// Stale entries: keys that are here from an earlier incarnation and were not received.
    pub(super) leftovers: BTreeMap<Segment, BTreeSet<Bytes>>,
}

struct ActivePull {
    from: Address,
    cursor: Option<(u64, u64)>,
    asked: Time,
    /// The bytes received of the segment, and its total once the sender has reported that.
    bytes: (u64, Option<u64>),
}

impl Transfer {
    /// Returns the number of segments that are not complete.
    pub(crate) fn segments_left(&self) -> usize {
        self.todo.len() + self.active.len()
    }

    /// Returns about how many bytes are still to be received.
    pub(crate) fn bytes_left(&self) -> u64 {
        let left = |pull: &ActivePull| match pull.bytes {
            (come, Some(all)) => all.saturating_sub(come),
            (_, None) => self.average(),
        };
        let active = self.active.values().map(left).fold(0, u64::saturating_add);
        active.saturating_add(self.average().saturating_mul(self.todo.len() as u64))
    }

    /// Returns the incomplete segments of which read owners have entries. Of other segments, this member may have all that is
    /// left.
    pub(super) fn lacking(&self, topology: &Topology) -> BTreeSet<Segment> {
        let waiting = self.todo.iter().chain(self.active.keys()).copied();
        let is_had =
            |segment: &Segment| topology.phase == Phase::ReadOldWriteAll && !topology.is_orphaned(*segment);
        waiting.filter(is_had).collect()
    }

    /// Returns the estimated bytes of a segment whose transfer has not begun.
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

    /// Returns the number of segments with a requested chunk.
    fn unpaused(&self) -> usize {
        self.active.len() - self.paused.len()
    }
}

/// Returns the segments of which a member is the first owner, and the other owners of each.
fn others_of(hash: &ConsistentHash, local: &Address) -> BTreeMap<Segment, Vec<Address>> {
    let owned = hash.primary_segments_of(local);
    let others = owned.map(|segment| (segment, hash.owners(segment).skip(1).cloned().collect::<Vec<_>>()));
    others.filter(|(_, others)| !others.is_empty()).collect()
}

impl Cache {
    /// Determines, for a new topology, which segments to request and from which members.
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
                    // Each owner may have entries that the other owners lack. The first owner receives all of them.
                    transfer.others = others_of(&topology.current, &cx.local);
                    transfer.todo = transfer.others.keys().copied().collect();
                }
            }
            self.transfer = transfer;
        }
        // A member that is no longer a sender of a segment sends no more chunks of it.
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
            // A new coordinator may not have received this report.
            return self.tell_when_stored(cx);
        }
        self.pull_more(cx);
    }

    pub(super) fn tell_pulled(&self, cx: &mut Cx) {
        self.tell_coordinator(cx, ToCoordinator::Pulled { rebalance: self.transfer.pulled });
    }

    /// Returns how many segments are requested at a time. Near a memory limit only one, because chunks in flight have no reserve
    /// beyond that limit.
    fn pulls_max(cx: &Cx) -> usize {
        if cx.memory.is_tight() { 1 } else { cx.pulls_max }
    }

    /// Returns whether the next chunk of a segment has to wait for memory.
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

    /// Requests a segment from a read owner: another one at every attempt. Returns false if all of them are unreachable; their
    /// entries are requested once a topology includes them again.
    fn pull_from_any(&mut self, cx: &mut Cx, segment: Segment, attempt: usize) -> bool {
        let Some(Installed { topology, .. }) = &self.installed else { return false };
        let givers: Vec<&Address> = present(topology, topology.current.owners(segment)).collect();
        if topology.is_orphaned(segment) {
            // All pending owners receive the entries that any pending owner has received.
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
            // Senders alternate, so that they share the work.
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

    /// Requests overdue chunks again.
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

    /// Notes that a segment is received from one of its owners that have entries of it.
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

    /// Resumes a segment that had to wait.
    pub(super) fn ask_again(&mut self, cx: &mut Cx, segment: Segment) {
        let Some(pull) = self.transfer.active.get_mut(&segment) else { return };
        pull.asked = cx.now;
        let pull = ActivePull { from: pull.from.clone(), ..*pull };
        self.ask(cx, segment, &pull);
    }

    /// Handles a received chunk.
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
            // The chunk is requested again after `PULL_AGAIN_AFTER`, because a member that refuses lacks a topology or has a
            // later one.
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
        if cx.has(InjectedBug::AgeForgotten) {
            let forgotten = |(key, stored)| (key, Stored { age: Duration::ZERO, ..stored });
            entries = entries.parts().map(forgotten).collect();
        }
        self.note_come(segment, entries.iter().map(|copy| copy.key));
        if cx.has(InjectedBug::ChunkOverwrites) {
            for (key, stored) in entries.parts() {
                let _ = self.container.put(segment, &key, stored.into_entry(cx.now), cx.now);
            }
        } else {
            self.put_copies(cx, segment, &entries);
        }
        if let Some(past) = past {
            self.state(segment).past.learn(&past);
        }
        let next = next.filter(|_| !cx.has(InjectedBug::LastChunkLost));
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
