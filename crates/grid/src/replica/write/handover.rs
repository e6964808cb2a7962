//! The handover of records at a change of owners (`docs/design/2026-11-grid.md`, Topologies): a new primary
//! receives all unfinished writes before it orders the next one, and sends them to all write owners.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_group::{Address, Time};

use crate::command::{Body, HandedRecord, HandedSegment, OperationId};
use crate::config::CacheId;
use crate::cx::Cx;
use crate::cx::calls::InFlight;
use crate::cx::calls::RESEND_AFTER;
use crate::injected_bugs::InjectedBug;
use crate::replica::store::Store;
use crate::replica::write::records::is_orphan;
use crate::replica::write::records::{ORPHANED, WriteEffect, WriteRecord};
use crate::replica::{CacheReplica, Installed, Shared};
use crate::{Segment, SegmentState};

/// The interval at which a write owner asks its primary whether all records of gone callers were sent.
const SETTLED_AFTER: Duration = RESEND_AFTER;

#[derive(Default)]
pub(crate) struct Handovers {
    /// When to ask primaries for records of gone callers, if there may be any.
    pub(crate) unsettled: Option<Time>,
}

impl CacheReplica {
    /// A new primary begins to wait for the records of the other owners.
    pub(crate) fn hand_over(&mut self, cx: &mut Cx) {
        if !self.handovers.send_records(&mut self.shared, &self.store, cx) {
            return;
        }
        // Calls parked here for another primary are handled again, and their callers learn of the new primary.
        for segment in self.shared.config.all_segments() {
            if !self.shared.is_primary(&cx.local, segment) {
                self.unpark(cx, segment);
            }
        }
    }

    pub(crate) fn handle_handover(&mut self, cx: &mut Cx, from: &Address, handed: HandedSegment) {
        let segment = handed.segment;
        if self.shared.topology().is_none_or(|topology| topology.primary_term(segment) != handed.primary_term)
        {
            return;
        }
        let is_pulled = self.shared.container.state(segment) == SegmentState::Receiving;
        if self.shared.state(segment).missing.contains(from) {
            self.store.take_records(&mut self.shared, cx, handed, true);
            self.shared.state(segment).missing.retain(|owner| owner != from);
            if self.shared.state(segment).is_open() {
                self.resend_records(cx);
                if self.merge.tick_merge(&self.shared, cx) {
                    self.resume_merge(cx);
                }
                self.confirm(cx);
            }
        } else if is_pulled && self.shared.write_owners(segment).any(|owner| *owner == cx.local) {
            self.store.take_records(&mut self.shared, cx, handed, false);
            // The callers of these records may have gone meanwhile.
            self.handovers.await_settled(cx);
        }
    }

    /// Sends all records to all write owners and handles the parked calls, for segments with other write
    /// owners or gone callers.
    pub(crate) fn resend_records(&mut self, cx: &mut Cx) {
        let mut settled: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        let mut told = Vec::new();
        for segment in self.shared.config.all_segments() {
            if !self.shared.is_primary(&cx.local, segment) {
                continue;
            }
            if !self.shared.state(segment).is_open() {
                // The records are adopted before their gone callers close the cache; they are sent when the other owners'
                // records have arrived.
                self.shared.adopt(cx, segment);
                continue;
            }
            let Some(topology) = self.shared.topology() else { return };
            let epoch = topology.epoch(segment);
            let is_new = std::mem::replace(&mut self.shared.state(segment).resent, epoch) != epoch;
            let adopted = self.shared.adopt(cx, segment);
            if is_new || adopted > 0 {
                let mut records: Vec<WriteRecord> =
                    self.shared.state(segment).records.iter().cloned().collect();
                // Listeners receive events in the order of versions, and recognise known events by their versions.
                records.sort_by_key(|record| record.version);
                for record in records {
                    if !self.listeners.is_idle() {
                        self.notify_local(cx, segment, &record, false);
                    }
                    if is_new || record.operation.caller == cx.local {
                        self.back_up_record(cx, segment, record);
                    }
                }
                told.push(segment);
                let is_shared = !self.shared.is_invalidation();
                for owner in
                    self.shared.write_owners(segment).filter(|owner| is_shared && **owner != cx.local)
                {
                    settled.entry(owner.clone()).or_default().push(segment);
                }
            }
            self.unpark(cx, segment);
        }
        for (owner, segments) in settled {
            self.shared.send(cx, &owner, Body::Settled(segments));
        }
        self.listeners.mark_own(&self.shared, cx, &told);
    }

    fn unpark(&mut self, cx: &mut Cx, segment: Segment) {
        for (from, call) in std::mem::take(&mut self.shared.state(segment).parked) {
            self.handle_call(cx, &from, call);
        }
    }
}

impl Handovers {
    fn send_records(&self, shared: &mut Shared, store: &Store, cx: &mut Cx) -> bool {
        // If every member orders its own writes, there are no records of other owners.
        let Some(installed) = shared.installed.as_ref().filter(|_| !shared.is_invalidation()) else {
            return false;
        };
        let mut handed: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        for segment in installed.writes.segments() {
            let primary_term = installed.topology.primary_term(segment);
            let state = &mut shared.segments[usize::from(segment.0)];
            // An owner that is gone or has begun anew has no records. A member that is no owner any more has already sent them.
            state.missing.retain(|owner| {
                let membership = installed.topology.membership(owner);
                membership.is_some_and(|one| one.since <= primary_term)
                    && !installed.topology.away().contains(owner)
            });
            if state.handed == primary_term
                || !installed.writes.owners(segment).any(|owner| *owner == cx.local)
            {
                continue;
            }
            state.handed = primary_term;
            state.records.forget_answers();
            match installed.writes.primary(segment) {
                Some(primary) if *primary == cx.local => {
                    state.missing = installed
                        .writes
                        .owners(segment)
                        .filter(|owner| **owner != cx.local && !installed.topology.away().contains(owner))
                        .cloned()
                        .collect();
                }
                Some(primary) => {
                    state.missing.clear();
                    handed.entry(primary.clone()).or_default().push(segment);
                }
                None => {}
            }
        }
        if cx.has(InjectedBug::HandoverNotAwaited) {
            shared.segments.iter_mut().for_each(|state| state.missing.clear());
        }
        for (primary, segments) in handed {
            let all =
                segments.into_iter().map(|segment| handed_segment(shared, store, cx, segment)).collect();
            shared.send(cx, &primary, Body::Handover(all));
        }
        true
    }

    pub(crate) fn await_settled(&mut self, cx: &Cx) {
        self.unsettled.get_or_insert(cx.now + SETTLED_AFTER);
    }

    /// Asks the primaries of segments that have records of gone callers here. Most have reported that they
    /// sent all. A primary that knew all as finished has sent no report; a report under another topology did
    /// not count, or was lost with a link.
    pub(crate) fn tick_records(&mut self, shared: &mut Shared, cx: &mut Cx) {
        if self.unsettled.is_none_or(|at| at > cx.now) || cx.has(InjectedBug::SettledNotAsked) {
            return;
        }
        let mut asked: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        if let Some(Installed { topology, writes, .. }) = &shared.installed {
            for segment in writes.segments() {
                let Some(primary) = writes.primary(segment).filter(|primary| **primary != cx.local) else {
                    continue;
                };
                let records = &mut shared.segments[usize::from(segment.0)].records;
                records.prune(&cx.watermarks);
                let is_owner = writes.owners(segment).any(|owner| *owner == cx.local);
                if is_owner && records.iter().any(|record| is_orphan(topology, &record.operation)) {
                    asked.entry(primary.clone()).or_default().push(segment);
                }
            }
        }
        self.unsettled = (!asked.is_empty()).then_some(cx.now + SETTLED_AFTER);
        for (primary, segments) in asked {
            shared.send(cx, &primary, Body::Settled(segments));
        }
    }

    /// Handles a primary's report that it has sent all records of callers outside `topology`, or another
    /// owner's question to this primary.
    pub(crate) fn handle_settled(
        &self,
        shared: &mut Shared,
        cx: &mut Cx,
        from: &Address,
        topology: u32,
        segments: Vec<Segment>,
    ) {
        // Under another topology other callers may have gone, which the primary's report does not cover.
        let Some(installed) = shared.installed.as_ref().filter(|one| one.topology.id == topology) else {
            return;
        };
        let members = &installed.topology;
        let mut asked = Vec::new();
        for segment in segments {
            let state = &mut shared.segments[usize::from(segment.0)];
            let primary = installed.writes.primary(segment);
            if primary == Some(from) {
                state.records.retain(|record| !is_orphan(members, &record.operation));
            } else if primary == Some(&cx.local) && state.is_open() {
                asked.push(segment);
            }
        }
        if !asked.is_empty() && !shared.is_invalidation() {
            shared.send(cx, from, Body::Settled(asked));
        }
    }
}

impl Store {
    /// `adopts`: the records of gone callers become this member's own.
    fn take_records(&mut self, shared: &mut Shared, cx: &mut Cx, handed: HandedSegment, adopts: bool) {
        let segment = handed.segment;
        for HandedRecord { operation, key, version, effect, outcome, skips_listeners } in handed.records {
            // A member that has closed the cache counts its given-up operations as finished.
            let is_gone = shared.topology().is_some_and(|topology| is_orphan(topology, &operation));
            let is_finished = !is_gone && cx.watermarks.is_finished(&operation);
            if shared.state(segment).records.of_write(&key, version).is_some() || is_finished {
                continue;
            }
            let did = WriteEffect::of(&effect);
            self.apply(shared, cx, segment, &key, version, effect);
            let key = bytes::Bytes::copy_from_slice(&key);
            let operation = match (is_gone, adopts) {
                (true, true) => {
                    OperationId { caller: cx.local.clone(), number: shared.open_own(cx, segment, &key) }
                }
                (true, false) => OperationId { number: ORPHANED, ..operation },
                (false, _) => operation,
            };
            let record = WriteRecord { operation, key, version, did, outcome, skips_listeners };
            shared.state(segment).records.push(record, &cx.watermarks);
        }
    }
}

impl Shared {
    fn adopt(&mut self, cx: &mut Cx, segment: Segment) -> usize {
        let Some(installed) = &self.installed else { return 0 };
        let id = self.id;
        let state = &mut self.segments[usize::from(segment.0)];
        state.records.prune(&cx.watermarks);
        let mut count = 0;
        for record in state.records.iter_mut() {
            let caller = &record.operation.caller;
            let is_away = cx.has(InjectedBug::AwayAdopted) && installed.topology.away().contains(caller);
            let is_gone = is_orphan(&installed.topology, &record.operation) || is_away;
            if !is_gone || cx.has(InjectedBug::CallersNotAdopted) {
                continue;
            }
            record.operation.number = own_call(cx, id, segment, record.key.clone());
            record.operation.caller = cx.local.clone();
            cx.counters.adopted += 1;
            count += 1;
        }
        count
    }

    pub(crate) fn open_own(&self, cx: &mut Cx, segment: Segment, key: &bytes::Bytes) -> u64 {
        own_call(cx, self.id, segment, key.clone())
    }
}

fn handed_segment(shared: &mut Shared, store: &Store, cx: &mut Cx, segment: Segment) -> HandedSegment {
    let state = &mut shared.segments[usize::from(segment.0)];
    state.records.prune(&cx.watermarks);
    let records: Vec<WriteRecord> = state.records.iter().cloned().collect();
    let records = records
        .into_iter()
        .map(|record| HandedRecord {
            effect: store.effect_of(shared, cx.now, segment, &record),
            operation: record.operation,
            key: record.key,
            version: record.version,
            outcome: record.outcome,
            skips_listeners: record.skips_listeners,
        })
        .collect();
    HandedSegment {
        segment,
        primary_term: shared.topology().map_or(0, |topology| topology.primary_term(segment)),
        records,
    }
}

/// Sends a segment's unfinished records to a member that fetches it. It may lack the record of a write whose
/// backup command was lost, and would, as the next primary, carry out the repeated write again.
pub(crate) fn give_records(shared: &mut Shared, store: &Store, cx: &mut Cx, to: &Address, segment: Segment) {
    let handed = handed_segment(shared, store, cx, segment);
    if !handed.records.is_empty() {
        shared.send(cx, to, Body::Handover(vec![handed]));
    }
}

/// An operation without a waiting caller, so that all owners receive a recorded write. An owner without the
/// record does nothing.
fn own_call(cx: &mut Cx, id: CacheId, segment: Segment, key: bytes::Bytes) -> u64 {
    let mut call = InFlight::new(id, segment, key, InFlight::nothing(), cx.now, Duration::ZERO);
    call.is_awaited = false;
    call.is_repeated = true;
    call.target = Some(cx.local.clone());
    cx.calls.open(call)
}
