//! The receiving side of a state transfer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Body, Chunk, Pull, ToCoordinator};
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::replica::store::Store;
use crate::replica::write::caller::present;
use crate::replica::{Installed, Shared};
use crate::topology::{Phase, Topology};
use crate::{ConsistentHash, Segment, SegmentState as ContainerState, Stored};

pub(crate) const PULL_AGAIN_AFTER: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct Transfer {
    pub(crate) rebalance: u32,
    todo: VecDeque<Segment>,
    active: BTreeMap<Segment, InboundTransfer>,
    paused: Vec<Segment>,
    /// The last rebalance that is complete here.
    pub(crate) pulled: u32,
    pub(crate) bytes: u64,
    /// The other owners to request each segment from, after a cold start or the loss of all owners' entries.
    others: BTreeMap<Segment, Vec<Address>>,
    /// The begun segments, and the bytes that the senders report for them.
    begun: (u64, u64),
    /// The keys of an earlier incarnation that were not received.
    pub(crate) leftovers: BTreeMap<Segment, BTreeSet<Bytes>>,
}

struct InboundTransfer {
    from: Address,
    cursor: Option<(u64, u64)>,
    asked: Time,
    bytes: (u64, Option<u64>),
}

impl Transfer {
    pub(crate) fn segments_left(&self) -> usize {
        self.todo.len() + self.active.len()
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        let left = |pull: &InboundTransfer| match pull.bytes {
            (come, Some(all)) => all.saturating_sub(come),
            (_, None) => self.average(),
        };
        let active = self.active.values().map(left).fold(0, u64::saturating_add);
        active.saturating_add(self.average().saturating_mul(self.todo.len() as u64))
    }

    /// The incomplete segments of which read owners have entries. Of others, this member may have all that is
    /// left.
    pub(crate) fn lacking(&self, topology: &Topology) -> BTreeSet<Segment> {
        let waiting = self.todo.iter().chain(self.active.keys()).copied();
        let is_had =
            |segment: &Segment| topology.phase == Phase::ReadOldWriteAll && !topology.is_orphaned(*segment);
        waiting.filter(is_had).collect()
    }

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

    fn unpaused(&self) -> usize {
        self.active.len() - self.paused.len()
    }
}

fn others_of(hash: &ConsistentHash, local: &Address) -> BTreeMap<Segment, Vec<Address>> {
    let owned = hash.primary_segments_of(local);
    let others = owned.map(|segment| (segment, hash.owners(segment).skip(1).cloned().collect::<Vec<_>>()));
    others.filter(|(_, others)| !others.is_empty()).collect()
}

impl Transfer {
    /// Whether to notify the coordinator that all is received.
    pub(crate) fn plan_transfer(&mut self, shared: &Shared, cx: &mut Cx) -> bool {
        let Some(installed) = &shared.installed else { return false };
        let topology = &installed.topology;
        let pending = match (topology.phase, &topology.pending) {
            (Phase::ReadOldWriteAll, Some(pending)) => Some(pending),
            (Phase::Restoring, _) => None,
            _ => {
                *self = Self { pulled: self.pulled, ..Self::default() };
                return false;
            }
        };
        if topology.rebalance != self.rebalance {
            let container = &shared.container;
            let (rebalance, pulled) = (topology.rebalance, self.pulled);
            let mut transfer = Self { rebalance, pulled, ..Self::default() };
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
            *self = transfer;
        }
        // A member that is no longer a sender of a segment sends no more chunks of it.
        let lost: Vec<Segment> = self
            .active
            .iter()
            .filter(|(segment, pull)| !topology.givers(**segment).any(|owner| *owner == pull.from))
            .map(|(segment, _)| *segment)
            .collect();
        for segment in lost {
            self.end_pull(segment);
            self.todo.push_back(segment);
        }
        if self.pulled == self.rebalance {
            // A new coordinator may not have received this report.
            return true;
        }
        self.pull_more(shared, cx);
        self.is_newly_pulled()
    }

    pub(crate) fn tell_pulled(&self, shared: &Shared, cx: &mut Cx) {
        shared.tell_coordinator(cx, ToCoordinator::Pulled { rebalance: self.pulled });
    }

    fn must_wait_for_memory(&self, cx: &Cx) -> bool {
        cx.memory.is_critical() || self.unpaused() > pulls_max(cx)
    }

    fn pull_more(&mut self, shared: &Shared, cx: &mut Cx) {
        let mut waiting = Vec::new();
        while !cx.memory.is_critical() && self.active.len() < pulls_max(cx) {
            let Some(segment) = self.todo.pop_front() else { break };
            if !self.pull_from_any(shared, cx, segment, 0) {
                waiting.push(segment);
            }
        }
        self.todo.extend(waiting);
    }

    /// Every attempt asks another read owner. Returns false if all are unreachable; a later topology includes
    /// them again.
    fn pull_from_any(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment, attempt: usize) -> bool {
        let Some(Installed { topology, .. }) = &shared.installed else { return false };
        let givers: Vec<&Address> = present(topology, topology.current.owners(segment)).collect();
        if topology.is_orphaned(segment) {
            // All pending owners receive the entries that any pending owner has received.
            let heirs = topology.pending.iter().flat_map(|pending| pending.owners(segment));
            let heirs: Vec<&Address> = heirs.filter(|heir| **heir != shared.member.address).collect();
            let new = || heirs.iter().map(|heir| (*heir).clone()).collect();
            let others = self.others.entry(segment).or_insert_with(new);
            others.retain(|other| heirs.contains(&other));
            if others.is_empty() {
                self.others.remove(&segment);
                return true;
            }
        } else if givers.is_empty() {
            return false;
        }
        let from = match self.others.get(&segment).and_then(|others| others.last()) {
            Some(other) => other.clone(),
            // Senders alternate, so that they share the work.
            None => givers[(usize::from(segment.0) + attempt) % givers.len()].clone(),
        };
        let pull = InboundTransfer { from, cursor: None, asked: cx.now, bytes: (0, None) };
        self.mark_stale(shared, segment);
        self.ask(shared, cx, segment, &pull);
        self.active.insert(segment, pull);
        true
    }

    fn ask(&self, shared: &Shared, cx: &mut Cx, segment: Segment, pull: &InboundTransfer) {
        let body = Pull {
            rebalance: self.rebalance,
            side: None,
            segment,
            cursor: pull.cursor,
            bytes_max: cx.chunk_bytes,
        };
        shared.send(cx, &pull.from, Body::Pull(body));
    }

    fn is_newly_pulled(&mut self) -> bool {
        let is_new = self.rebalance > 0 && !self.is_active() && self.pulled < self.rebalance;
        if is_new {
            self.pulled = self.rebalance;
        }
        is_new
    }

    pub(crate) fn tick_transfer(&mut self, shared: &Shared, cx: &mut Cx) -> bool {
        if self.is_active() && cx.memory.is_critical() {
            return false;
        }
        while self.unpaused() < pulls_max(cx)
            && let Some(segment) = self.paused.pop()
        {
            self.ask_again(shared, cx, segment);
        }
        if self.active.is_empty() && !self.todo.is_empty() {
            self.pull_more(shared, cx);
        }
        let late: Vec<Segment> = self
            .active
            .iter()
            .filter(|(segment, pull)| {
                cx.now.since(pull.asked) >= PULL_AGAIN_AFTER && !self.paused.contains(segment)
            })
            .map(|(segment, _)| *segment)
            .collect();
        for segment in late {
            self.active.remove(&segment);
            if !self.pull_from_any(shared, cx, segment, 1) {
                self.todo.push_back(segment);
            }
        }
        self.is_newly_pulled()
    }

    fn note_pulled_from(&mut self, segment: Segment) {
        if let Some(others) = self.others.get_mut(&segment) {
            others.pop();
            if others.is_empty() {
                self.others.remove(&segment);
            } else {
                self.todo.push_back(segment);
            }
        }
    }

    pub(crate) fn ask_again(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment) {
        let Some(pull) = self.active.get_mut(&segment) else { return };
        pull.asked = cx.now;
        let pull = InboundTransfer { from: pull.from.clone(), ..*pull };
        self.ask(shared, cx, segment, &pull);
    }

    pub(crate) fn take_chunk(
        &mut self,
        shared: &mut Shared,
        store: &mut Store,
        cx: &mut Cx,
        from: &Address,
        chunk: Chunk,
    ) -> bool {
        let Chunk { rebalance, segment, mut entries, next, history, is_refused, segment_bytes, .. } = chunk;
        if rebalance != self.rebalance || self.active.get(&segment).is_none_or(|pull| pull.from != *from) {
            return false;
        }
        if is_refused {
            // The chunk is requested again after `PULL_AGAIN_AFTER`, because a member that refuses lacks a topology or has a
            // later one.
            return false;
        }
        let come = entries.content_bytes() as u64;
        self.bytes += come;
        if let Some(pull) = self.active.get_mut(&segment) {
            pull.bytes.0 += come;
            if pull.bytes.1.replace(segment_bytes).is_none() {
                let (segments, bytes) = &mut self.begun;
                (*segments, *bytes) = (*segments + 1, bytes.saturating_add(segment_bytes));
                shared.container.reserve(segment, entries.count_in(segment_bytes));
            }
        }
        if cx.has(InjectedBug::AgeForgotten) {
            let forgotten = |(key, stored)| (key, Stored { age: Duration::ZERO, ..stored });
            entries = entries.parts().map(forgotten).collect();
        }
        self.unmark_received(segment, entries.iter().map(|copy| copy.key));
        if cx.has(InjectedBug::ChunkOverwrites) {
            for (key, stored) in entries.parts() {
                let _ = shared.container.put(segment, &key, stored.into_entry(cx.now), cx.now);
            }
        } else {
            store.put_copies(shared, cx, segment, &entries);
        }
        if let Some(history) = history {
            shared.state(segment).history.learn(&history);
        }
        let next = next.filter(|_| !cx.has(InjectedBug::LastChunkLost));
        match (next, self.active.get_mut(&segment)) {
            (Some(next), Some(pull)) => {
                pull.cursor = Some(next);
                pull.asked = cx.now;
                if self.must_wait_for_memory(cx) {
                    self.paused.push(segment);
                } else if !store.must_pause(segment) {
                    self.ask_again(shared, cx, segment);
                }
                false
            }
            _ => {
                self.end_pull(segment);
                self.remove_stale(shared, store, cx, segment);
                self.note_pulled_from(segment);
                self.pull_more(shared, cx);
                self.is_newly_pulled()
            }
        }
    }
}

/// Near a memory limit it is one, because chunks in flight have no reserve beyond that limit.
fn pulls_max(cx: &Cx) -> usize {
    if cx.memory.is_tight() { 1 } else { cx.pulls_max }
}
