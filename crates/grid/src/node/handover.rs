//! Records at a change of owners: the new primary of a segment learns of all unfinished writes before it orders the
//! next one, and sees to it that all write owners have them.

use std::collections::BTreeMap;
use std::time::Duration;

use consort_group::Address;

use super::cache::{Cache, Installed};
use super::caller::RESEND_AFTER;
use super::calls::InFlight;
use super::cx::Cx;
use super::records::{Did, ORPHANED, Record};
use crate::command::{Body, CacheId, HandedRecord, HandedSegment, OperationId};
use crate::planted::Planted;
use crate::{Segment, SegmentState};

/// How long a write owner waits for its primary to say that it has sent what it had of callers that have gone, until it asks,
/// and asks again.
const SETTLED_AFTER: Duration = RESEND_AFTER;

impl Cache {
    /// Sends our records to new primaries, and as a new primary begins to wait for those of others.
    pub(super) fn hand_over(&mut self, cx: &mut Cx) {
        // Where every member orders its own writes, there is nobody to hear of others.
        let Some(installed) = self.installed.as_ref().filter(|_| !self.is_invalidation()) else { return };
        let mut handed: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        for segment in installed.writes.segments() {
            let reign = installed.topology.reign(segment);
            let state = &mut self.segments[usize::from(segment.0)];
            // Who is gone or has begun anew has nothing to hand over. Who is no owner any more has sent it.
            state.missing.retain(|owner| {
                let membership = installed.topology.membership(owner);
                membership.is_some_and(|one| one.since <= reign) && !installed.topology.away().contains(owner)
            });
            if state.handed == reign || !installed.writes.owners(segment).any(|owner| *owner == cx.local) {
                continue;
            }
            state.handed = reign;
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
        if cx.has(Planted::HandoverNotAwaited) {
            self.segments.iter_mut().for_each(|state| state.missing.clear());
        }
        for (primary, segments) in handed {
            let all = segments.into_iter().map(|segment| self.handed_segment(cx, segment)).collect();
            self.send(cx, &primary, Body::Handover(all));
        }
        // Calls that waited here for somebody who is primary no more find out by themselves.
        for segment in self.config.all_segments() {
            if !self.is_primary(&cx.local, segment) {
                self.unpark(cx, segment);
            }
        }
    }

    fn handed_segment(&mut self, cx: &mut Cx, segment: Segment) -> HandedSegment {
        let state = &mut self.segments[usize::from(segment.0)];
        state.records.prune(&cx.watermarks);
        let records: Vec<Record> = state.records.iter().cloned().collect();
        let records = records
            .into_iter()
            .map(|record| HandedRecord {
                effect: self.effect_of(cx.now, segment, &record),
                operation: record.operation,
                key: record.key,
                version: record.version,
                outcome: record.outcome,
                is_silent: record.is_silent,
            })
            .collect();
        HandedSegment {
            segment,
            reign: self.topology().map_or(0, |topology| topology.reign(segment)),
            records,
        }
    }

    /// Gives what is unfinished to who pulls a segment. Of what was written before, it has the entries of us and, if the
    /// primary's command was lost, no record: as the next primary it would carry out again what is sent again.
    pub(super) fn give_records(&mut self, cx: &mut Cx, to: &Address, segment: Segment) {
        let handed = self.handed_segment(cx, segment);
        if !handed.records.is_empty() {
            self.send(cx, to, Body::Handover(vec![handed]));
        }
    }

    /// A write owner's records have come, for a new primary or with a segment that is pulled.
    pub(super) fn handle_handover(&mut self, cx: &mut Cx, from: &Address, handed: HandedSegment) {
        let segment = handed.segment;
        if self.topology().is_none_or(|topology| topology.reign(segment) != handed.reign) {
            return;
        }
        let is_pulled = self.container.state(segment) == SegmentState::Receiving;
        if self.state(segment).missing.contains(from) {
            self.take_records(cx, handed, true);
            self.state(segment).missing.retain(|owner| owner != from);
            if self.state(segment).is_open() {
                self.resend_records(cx);
                self.look_after_merge(cx);
                self.confirm(cx);
            }
        } else if is_pulled && self.write_owners(segment).any(|owner| *owner == cx.local) {
            self.take_records(cx, handed, false);
            // Of callers perhaps that have gone meanwhile.
            self.await_settled(cx);
        }
    }

    /// Remembers writes and does what they have done. `adopts`: those of callers that have gone become ours.
    fn take_records(&mut self, cx: &mut Cx, handed: HandedSegment, adopts: bool) {
        let segment = handed.segment;
        for HandedRecord { operation, key, version, effect, outcome, is_silent } in handed.records {
            // Who has closed the cache counts what it gave up as finished.
            let is_gone = self.topology().is_some_and(|topology| Self::is_orphan(topology, &operation));
            let is_finished = !is_gone && cx.watermarks.is_finished(&operation);
            if self.state(segment).records.of_write(&key, version).is_some() || is_finished {
                continue;
            }
            let did = Did::of(&effect);
            self.apply(cx, segment, &key, version, effect);
            let key = bytes::Bytes::copy_from_slice(&key);
            let operation = match (is_gone, adopts) {
                (true, true) => {
                    OperationId { caller: cx.local.clone(), number: self.open_own(cx, segment, &key) }
                }
                (true, false) => OperationId { number: ORPHANED, ..operation },
                (false, _) => operation,
            };
            let record = Record { operation, key, version, did, outcome, is_silent };
            self.state(segment).records.push(record, &cx.watermarks);
        }
    }

    /// As the primary of segments whose write owners have changed, or whose records' callers have gone: sends all
    /// records to all write owners, and lets in the calls that have waited.
    pub(super) fn resend_records(&mut self, cx: &mut Cx) {
        let mut settled: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        let mut told = Vec::new();
        for segment in self.config.all_segments() {
            if !self.is_primary(&cx.local, segment) {
                continue;
            }
            if !self.state(segment).is_open() {
                // Before its callers that have gone close the cache; it is sent when the others' has come.
                self.adopt(cx, segment);
                continue;
            }
            let Some(topology) = self.topology() else { return };
            let epoch = topology.epoch(segment);
            let is_new = std::mem::replace(&mut self.state(segment).resent, epoch) != epoch;
            let adopted = self.adopt(cx, segment);
            if is_new || adopted > 0 {
                let mut records: Vec<Record> = self.state(segment).records.iter().cloned().collect();
                // Listeners are told in the order of versions, and recognise by it what they know.
                records.sort_by_key(|record| record.version);
                for record in records {
                    if !self.listeners.is_idle() {
                        self.tell_own(cx, segment, &record, false);
                    }
                    if is_new || record.operation.caller == cx.local {
                        self.back_up_record(cx, segment, record);
                    }
                }
                told.push(segment);
                let is_shared = !self.is_invalidation();
                for owner in self.write_owners(segment).filter(|owner| is_shared && **owner != cx.local) {
                    settled.entry(owner.clone()).or_default().push(segment);
                }
            }
            self.unpark(cx, segment);
        }
        for (owner, segments) in settled {
            self.send(cx, &owner, Body::Settled(segments));
        }
        self.mark_own(cx, &told);
    }

    /// Takes over the records whose callers have gone. Returns how many.
    fn adopt(&mut self, cx: &mut Cx, segment: Segment) -> usize {
        let Some(installed) = &self.installed else { return 0 };
        let id = self.config.id();
        let state = &mut self.segments[usize::from(segment.0)];
        state.records.prune(&cx.watermarks);
        let mut count = 0;
        for record in state.records.iter_mut() {
            let caller = &record.operation.caller;
            let is_away = cx.has(Planted::AwayAdopted) && installed.topology.away().contains(caller);
            let is_gone = Self::is_orphan(&installed.topology, &record.operation) || is_away;
            if !is_gone || cx.has(Planted::CallersNotAdopted) {
                continue;
            }
            record.operation.number = own_call(cx, id, segment, record.key.clone());
            record.operation.caller = cx.local.clone();
            cx.counters.adopted += 1;
            count += 1;
        }
        count
    }

    /// There may be records of callers that have gone.
    pub(super) fn await_settled(&mut self, cx: &Cx) {
        self.unsettled.get_or_insert(cx.now + SETTLED_AFTER);
    }

    /// Asks the primaries of segments of which there are records of callers that have gone. Most have sent them again as their
    /// own, and have said that this is all. Who knew that all was finished has said nothing, and what was said under another
    /// topology did not count, or was lost with a link.
    pub(crate) fn look_after_records(&mut self, cx: &mut Cx) {
        if self.unsettled.is_none_or(|at| at > cx.now) || cx.has(Planted::SettledNotAsked) {
            return;
        }
        let mut asked: BTreeMap<Address, Vec<Segment>> = BTreeMap::new();
        if let Some(Installed { topology, writes, .. }) = &self.installed {
            for segment in writes.segments() {
                let Some(primary) = writes.primary(segment).filter(|primary| **primary != cx.local) else {
                    continue;
                };
                let records = &mut self.segments[usize::from(segment.0)].records;
                records.prune(&cx.watermarks);
                let is_owner = writes.owners(segment).any(|owner| *owner == cx.local);
                if is_owner && records.iter().any(|record| Self::is_orphan(topology, &record.operation)) {
                    asked.entry(primary.clone()).or_default().push(segment);
                }
            }
        }
        self.unsettled = (!asked.is_empty()).then_some(cx.now + SETTLED_AFTER);
        for (primary, segments) in asked {
            self.send(cx, &primary, Body::Settled(segments));
        }
    }

    /// The primary has sent everything that it had of callers that were no members of `topology`; or another owner asks this
    /// one whether it has.
    pub(super) fn handle_settled(
        &mut self,
        cx: &mut Cx,
        from: &Address,
        topology: u32,
        segments: Vec<Segment>,
    ) {
        // With another topology other callers may be gone, of which the primary has not spoken.
        let Some(installed) = self.installed.as_ref().filter(|one| one.topology.id == topology) else {
            return;
        };
        let members = &installed.topology;
        let mut asked = Vec::new();
        for segment in segments {
            let state = &mut self.segments[usize::from(segment.0)];
            let primary = installed.writes.primary(segment);
            if primary == Some(from) {
                state.records.retain(|record| !Self::is_orphan(members, &record.operation));
            } else if primary == Some(&cx.local) && state.is_open() {
                asked.push(segment);
            }
        }
        if !asked.is_empty() && !self.is_invalidation() {
            self.send(cx, from, Body::Settled(asked));
        }
    }

    /// Begins an operation of this member's own, for a write that it has ordered or is about to order as the primary.
    pub(super) fn open_own(&self, cx: &mut Cx, segment: Segment, key: &bytes::Bytes) -> u64 {
        own_call(cx, self.config.id(), segment, key.clone())
    }

    /// Calls that have waited are looked at again.
    fn unpark(&mut self, cx: &mut Cx, segment: Segment) {
        for (from, call) in std::mem::take(&mut self.state(segment).parked) {
            self.handle_call(cx, &from, call);
        }
    }
}

/// An operation that nobody waits for, so that all owners have a write that has a record. It is sent again as any operation
/// is; wherever it finds no record, it has nothing to do.
fn own_call(cx: &mut Cx, id: CacheId, segment: Segment, key: bytes::Bytes) -> u64 {
    let mut call = InFlight::new(id, segment, key, InFlight::nothing(), cx.now, Duration::ZERO);
    call.is_awaited = false;
    call.is_repeated = true;
    call.target = Some(cx.local.clone());
    cx.calls.open(call)
}
