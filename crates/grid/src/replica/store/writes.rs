//! A cache with a store: pending writes, and the acknowledgements that wait for them
//! (`docs/design/2026-11-grid.md`, Stores).
//!
//! Every change in memory requests a write of the key's entry ([`Store::note_changed`]). Acknowledgements
//! wait until all earlier writes are stored ([`crate::replica::CacheReplica::acknowledge`]), so that many
//! operations share the store's time. Requests are numbered and end in order; an acknowledgement takes a
//! number without a request. While writes are refused, this member, as a primary, accepts only removals.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Ack, Body, Restored};
use crate::container::Taken;
use crate::cx::Cx;
use crate::injected_bugs::InjectedBug;
use crate::operation::{Change, OperationError, StoreFailure};
use crate::persistence::{PersistedState, StoreOrder, StoreRequest, StoreSettings};
use crate::replica::Shared;
use crate::replica::store::loads::Loading;
use crate::replica::store::refused_removals::Owed;
use crate::replica::store::{Place, Store, Then, Wait};
use crate::{Entry, Segment, Stored};

/// Retries free no space on a full disk.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const RETRIES: usize = 64;

/// Beyond it, callers of all keys receive `NotStored`, and a key is stored with its next write.
const UNSAVED_MAX: usize = 65_536;

/// Pending writes for requests to other owners: several chunks, so that the store is never idle.
const WRITES_MAX: usize = 16_384;

#[derive(Default)]
pub(crate) struct Persistence {
    passivation: bool,
    /// The state of the last incarnation, until the first topology judges it.
    pub(crate) remembered: Option<PersistedState>,
    next: u64,
    waits: BTreeMap<u64, Wait>,
    /// Keys with a pending write, and the last one's number: the store may refuse an entry that leaves memory
    /// meanwhile.
    writing: BTreeMap<Place, u64>,
    pub(crate) loads: BTreeMap<u64, Loading>,
    /// Evicted values of writes that have a record or are not stored.
    held: BTreeMap<Place, Held>,
    pub(crate) at_hand: BTreeMap<Place, Entry>,
    unsaved: BTreeSet<Place>,
    pub(crate) why: Option<StoreFailure>,
    pub(crate) owed: Owed,
    confirms: Option<u32>,
    is_forgetful: bool,
    /// Whether the store's entries are not those of the cache.
    is_stale: bool,
    pub(crate) retried: Time,
    /// Whether the coordinator's notification waits for stored segments.
    owes_pulled: bool,
    paused: VecDeque<Segment>,
}

struct Held {
    entry: Entry,
    /// Whether the value is held until it is stored, record or not.
    is_awaited: bool,
}

impl Persistence {
    pub(crate) fn new(backing: StoreSettings) -> Self {
        Self { passivation: backing.passivation, remembered: backing.remembered, ..Self::default() }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn needs_look(&self) -> bool {
        !self.held.is_empty() || self.is_failing() || self.is_forgetful
    }

    fn is_failing(&self) -> bool {
        self.owed.is_any() || !self.unsaved.is_empty()
    }

    /// Refused keys beyond [`UNSAVED_MAX`] are not remembered, so then all keys count as refused.
    fn has_refused(&self, place: &Place) -> bool {
        self.owed.has(place.0) || self.unsaved.len() >= UNSAVED_MAX || self.unsaved.contains(place)
    }

    fn note_unsaved(&mut self, cx: &mut Cx, place: Place) {
        if self.unsaved.len() < UNSAVED_MAX {
            self.unsaved.insert(place);
        } else {
            cx.counters.unsaved += 1;
        }
    }

    pub(crate) fn value_of(&self, place: &Place, version: crate::Version) -> Option<&Entry> {
        let held = || self.held.get(place).map(|held| &held.entry);
        let found = self.at_hand.get(place).or_else(held);
        found.filter(|entry| entry.version == version)
    }
}

impl Store {
    pub(crate) fn is_backed(&self) -> bool {
        self.persistence.is_some()
    }

    /// `was_passive`: only the store had the value.
    pub(crate) fn note_changed(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        was_passive: bool,
        evicted: Vec<Taken>,
    ) {
        let Some(persistence) = &mut self.persistence else { return };
        let place = (segment, Bytes::copy_from_slice(key));
        persistence.held.remove(&place);
        if !persistence.passivation || was_passive {
            self.write(shared, cx, place);
        }
        self.note_evicted(shared, cx, evicted);
    }

    pub(crate) fn note_activated(&mut self, shared: &Shared, cx: &mut Cx, place: Place) {
        if self.persistence.as_ref().is_some_and(|persistence| persistence.passivation) {
            self.write(shared, cx, place);
        }
    }

    pub(crate) fn note_evicted(&mut self, shared: &mut Shared, cx: &mut Cx, evicted: Vec<Taken>) {
        for Taken { segment, key, entry } in evicted {
            let Some(persistence) = &mut self.persistence else { return };
            let place = (segment, key);
            let records = &mut shared.segments[usize::from(segment.0)].records;
            let is_needed = persistence.passivation
                || persistence.unsaved.contains(&place)
                || persistence.writing.contains_key(&place) && !cx.has(InjectedBug::WritingForgotten)
                || records.need(&place.1, &cx.watermarks);
            if is_needed {
                let is_awaited = persistence.passivation;
                persistence.held.insert(place.clone(), Held { entry, is_awaited });
            }
            if persistence.passivation {
                self.write(shared, cx, place);
            }
        }
    }

    pub(crate) fn put_passive(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        entry: Entry,
    ) {
        // An entry without its value always fits.
        let put = shared.container.put(segment, key, entry.clone().passivated(), cx.now);
        let (Some(persistence), Ok(_)) = (&mut self.persistence, put) else { return };
        let place = (segment, Bytes::copy_from_slice(key));
        persistence.held.insert(place.clone(), Held { entry, is_awaited: true });
        self.write(shared, cx, place);
    }

    pub(crate) fn hold(&mut self, place: Place, entry: Entry) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.entry(place).or_insert(Held { entry, is_awaited: false });
    }

    pub(crate) fn note_expired(&mut self, shared: &Shared, cx: &mut Cx, expired: Vec<Taken>) {
        for Taken { segment, key, entry } in expired {
            let Some(persistence) = &mut self.persistence else { return };
            let place = (segment, key);
            persistence.held.remove(&place);
            if !persistence.passivation || entry.is_passive() {
                self.write(shared, cx, place);
            }
        }
    }

    fn write(&mut self, shared: &Shared, cx: &mut Cx, place: Place) -> bool {
        let present = shared.container.peek(place.0, &place.1);
        let Some(persistence) = &mut self.persistence else { return false };
        let entry = match present {
            Some(entry) if entry.is_passive() => match persistence.held.get(&place) {
                Some(held) => Some(held.entry.clone()),
                None => return false,
            },
            Some(_) if persistence.passivation => None,
            present => present,
        };
        if persistence.owed.has(place.0) {
            persistence.note_unsaved(cx, place);
            return true;
        }
        let number = persistence.number();
        let version = entry.as_ref().map_or(crate::Version::NONE, |entry| entry.version);
        persistence.waits.insert(number, Wait::Write { place: place.clone(), version });
        persistence.writing.insert(place.clone(), number);
        let entry = entry.map(|entry| Stored::of(entry, cx.now));
        let (segment, key) = place;
        cx.store.push_back((shared.id, StoreRequest::Write { number, segment, key, entry }));
        true
    }

    pub(crate) fn order(&mut self, shared: &Shared, cx: &mut Cx, order: StoreOrder) {
        let id = shared.topology_id();
        let Some(persistence) = &mut self.persistence else { return };
        let number = persistence.number();
        let wait = match order {
            StoreOrder::Remember(_) => Wait::Remember(id),
            StoreOrder::RemoveSegment(segment) => Wait::RemoveSegment(segment),
            StoreOrder::Clear => Wait::Clear,
        };
        persistence.waits.insert(number, wait);
        cx.store.push_back((shared.id, StoreRequest::Order { number, order }));
    }

    /// The action returns if no request is pending.
    pub(crate) fn await_writes(&mut self, cx: &Cx, then: Then) -> Option<Then> {
        match &mut self.persistence {
            Some(persistence) if !persistence.waits.is_empty() && !cx.has(InjectedBug::StoreNotAwaited) => {
                let number = persistence.number();
                persistence.waits.insert(number, Wait::Barrier(then));
                None
            }
            _ => Some(then),
        }
    }

    pub(crate) fn failure(&self) -> StoreFailure {
        let why = self.persistence.as_ref().and_then(|persistence| persistence.why.clone());
        why.unwrap_or_else(|| "unknown".into())
    }

    /// Removals are accepted: they may free space in the store, which reserves space for them.
    pub(crate) fn store_refusal(&self, cx: &Cx, segment: Segment, change: &Change) -> Option<OperationError> {
        let persistence = self.persistence.as_ref().filter(|persistence| persistence.is_failing())?;
        if matches!(change, Change::Remove) && !persistence.owed.has(segment) {
            return None;
        }
        Some(OperationError::StoreUnavailable { member: cx.local.clone().into(), why: self.failure() })
    }

    pub(crate) fn must_pause(&mut self, segment: Segment) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let is_behind = persistence.waits.len() >= WRITES_MAX;
        if is_behind && !persistence.paused.contains(&segment) {
            persistence.paused.push_back(segment);
        }
        is_behind
    }

    /// Whether this request persists the installed topology, which may then be confirmed.
    pub(crate) fn note_stored(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        number: u64,
        result: Result<(), StoreFailure>,
    ) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let wait = persistence.waits.remove(&number);
        if let Some(Wait::Write { place, .. }) = &wait
            && persistence.writing.get(place) == Some(&number)
        {
            persistence.writing.remove(place);
        }
        match (wait, result) {
            // The write precedes the retry of a failed removal, which would remove it. It is repeated after that retry.
            (Some(Wait::Write { place, .. }), Ok(())) if persistence.owed.has(place.0) => {
                persistence.note_unsaved(cx, place);
            }
            (Some(Wait::Write { place, version }), Ok(())) => {
                if persistence.unsaved.remove(&place) && persistence.writing.is_empty() {
                    // The store accepts writes again, so the next retries are due at once.
                    persistence.retried = Time::ZERO;
                }
                // With passivation, the value was held until this write. A record may still need it, as without passivation. Only
                // the last of several pending writes counts, because the entry may be removed from the store between two of them.
                let is_last = !persistence.writing.contains_key(&place);
                let held = persistence.held.get_mut(&place).filter(|_| is_last);
                if let Some(held) = held.filter(|held| held.entry.version == version) {
                    held.is_awaited = false;
                    let records = &mut shared.segments[usize::from(place.0.0)].records;
                    let is_needed = records.need(&place.1, &cx.watermarks);
                    if persistence.passivation && (!is_needed || cx.has(InjectedBug::HeldForgotten)) {
                        persistence.held.remove(&place);
                    }
                }
            }
            (Some(Wait::Write { place, .. }), Err(why)) => {
                persistence.why = Some(why);
                persistence.note_unsaved(cx, place);
            }
            (Some(wait @ (Wait::RemoveSegment(_) | Wait::Clear)), result) => {
                self.handle_removed(shared, cx, &wait, result);
            }
            (Some(Wait::Remember(id)), result) => {
                if let Err(why) = result {
                    persistence.why = Some(why);
                    persistence.is_forgetful = true;
                }
                // A failing store does not block other members.
                return self.is_remembered(shared, id);
            }
            _ => {}
        }
        false
    }

    pub(crate) fn next_barrier(&mut self) -> Option<Then> {
        let first = self.persistence.as_mut()?.waits.first_entry()?;
        if !matches!(first.get(), Wait::Barrier(_)) {
            return None;
        }
        if let Wait::Barrier(then) = first.remove() { Some(then) } else { None }
    }

    pub(crate) fn has_refused(&self, place: &Place) -> bool {
        self.persistence.as_ref().is_some_and(|persistence| persistence.has_refused(place))
    }

    /// A failing store delays the report until it recovers.
    pub(crate) fn delays_pulled(&mut self) -> bool {
        let Some(persistence) = self.persistence.as_mut().filter(|one| one.is_failing()) else {
            return false;
        };
        persistence.owes_pulled = true;
        true
    }

    pub(crate) fn takes_owed_pulled(&mut self) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let is_due = persistence.owes_pulled && !persistence.is_failing();
        persistence.owes_pulled &= !is_due;
        is_due
    }

    pub(crate) fn next_unpaused(&mut self) -> Option<Segment> {
        let persistence = self.persistence.as_mut().filter(|one| one.waits.len() < WRITES_MAX / 2)?;
        persistence.paused.pop_front()
    }

    pub(crate) fn tick_store(&mut self, shared: &mut Shared, cx: &mut Cx) {
        cx.record_own_watermark();
        let segments = &mut shared.segments;
        let Some(persistence) = &mut self.persistence else { return };
        let (unsaved, writing) = (&persistence.unsaved, &persistence.writing);
        persistence.held.retain(|place, held| {
            held.is_awaited
                || unsaved.contains(place)
                || writing.contains_key(place)
                || segments[usize::from(place.0.0)].records.need(&place.1, &cx.watermarks)
        });
        if cx.now.since(persistence.retried) < RETRY_AFTER {
            return;
        }
        persistence.retried = cx.now;
        let is_owed = |place: &&Place| persistence.owed.has(place.0);
        let again = persistence.unsaved.iter().filter(|place| !is_owed(place)).take(RETRIES);
        let again: Vec<Place> = again.cloned().collect();
        if std::mem::take(&mut persistence.is_forgetful) {
            self.remember(shared, cx, false);
        }
        self.remove_owed(shared, cx);
        for place in again {
            if !self.write(shared, cx, place.clone())
                && let Some(persistence) = &mut self.persistence
            {
                // Only the store has the entry.
                persistence.unsaved.remove(&place);
            }
        }
    }

    pub(crate) fn remember(&mut self, shared: &Shared, cx: &mut Cx, is_void: bool) {
        let Some(topology) = shared.topology().filter(|_| self.is_backed()).cloned() else { return };
        // While a clear of the store is pending, none of its entries is valid after a restart.
        let is_void = is_void || self.persistence.as_ref().is_some_and(|one| one.owed.clear);
        let remembered =
            PersistedState { member: cx.local.clone(), config: shared.config.clone(), topology, is_void };
        self.order(shared, cx, StoreOrder::Remember(remembered.encode()));
    }

    pub(crate) fn restored(&self) -> Option<Restored> {
        let remembered = self.persistence.as_ref()?.remembered.as_ref()?;
        let (formerly, topology) = (remembered.member.clone(), remembered.topology.clone());
        Some(Restored { formerly, topology })
    }

    /// 0 without an earlier incarnation.
    pub(crate) fn remembered_id(&self) -> u32 {
        let remembered = self.persistence.as_ref().and_then(|one| one.remembered.as_ref());
        remembered.map_or(0, |remembered| remembered.topology.id)
    }

    /// The other members have continued without the store's entries.
    pub(crate) fn abandon_store(&mut self) {
        if let Some(persistence) = &mut self.persistence {
            persistence.remembered = None;
            persistence.is_stale = true;
        }
    }

    /// Persists a topology before any change depends on it and before it is confirmed. Otherwise a member
    /// that returns alone would continue from a topology that the others have replaced.
    pub(crate) fn begin_life(&mut self, shared: &Shared, cx: &mut Cx) {
        let id = shared.topology_id();
        let Some(persistence) = &mut self.persistence else { return };
        persistence.remembered = None;
        persistence.confirms = (!cx.has(InjectedBug::NoteNotAwaited)).then_some(id);
        if std::mem::take(&mut persistence.is_stale) {
            // If this member stops in between, entries of an earlier incarnation do not count as entries of this one.
            self.remember(shared, cx, true);
            self.clear_store(shared, cx);
        }
        self.remember(shared, cx, false);
    }

    pub(crate) fn confirms_later(&self, shared: &Shared) -> bool {
        let id = shared.topology_id();
        self.persistence.as_ref().is_some_and(|persistence| persistence.confirms == Some(id))
    }

    fn is_remembered(&mut self, shared: &Shared, id: u32) -> bool {
        // The earlier note marked the store's entries as void.
        let is_last = |persistence: &Persistence| {
            !persistence.waits.values().any(|wait| matches!(wait, Wait::Remember(other) if *other == id))
        };
        if let Some(persistence) = self.persistence.as_mut().filter(|one| one.confirms == Some(id))
            && is_last(persistence)
        {
            persistence.confirms = None;
            return shared.topology_id() == id;
        }
        false
    }

    fn clear_store(&mut self, shared: &Shared, cx: &mut Cx) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.clear();
        persistence.unsaved.clear();
        persistence.paused.clear();
        self.order(shared, cx, StoreOrder::Clear);
    }

    pub(crate) fn note_dropped(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.retain(|place, _| place.0 != segment);
        persistence.unsaved.retain(|place| place.0 != segment);
        if cx.has(InjectedBug::StoreKept) {
            return;
        }
        self.order(shared, cx, StoreOrder::RemoveSegment(segment));
    }

    /// A member that owns segments keeps their entries for its restart. Without segments it clears its store,
    /// and waits for the other members at its restart.
    pub(crate) fn persist_on_close(&mut self, shared: &Shared, cx: &mut Cx) {
        let Some(topology) = shared.topology().filter(|_| self.is_backed()) else { return };
        if topology.read_owners().segments_of(&cx.local).next().is_none() {
            self.remember(shared, cx, true);
            return self.clear_store(shared, cx);
        }
        let Some(persistence) = self.persistence.as_mut().filter(|one| one.passivation) else { return };
        // From now on the store receives all values.
        persistence.passivation = false;
        for segment in (0..shared.config.segments).map(Segment) {
            let limits = crate::ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
            let all = shared.container.chunk(segment, crate::Cursor::START, limits, cx.now);
            for (key, entry) in all.into_iter().flat_map(|chunk| chunk.entries) {
                if !entry.is_passive() {
                    self.write(shared, cx, (segment, key));
                }
            }
        }
    }
}

impl Shared {
    pub(crate) fn is_passive(&self, segment: Segment, key: &[u8]) -> bool {
        self.container.peek(segment, key).is_some_and(|entry| entry.is_passive())
    }

    pub(crate) fn send_ack(&self, cx: &mut Cx, to: &Address, ack: Ack) {
        if *to == cx.local {
            let local = cx.local.clone();
            cx.calls.ack(&local, ack);
        } else {
            self.send(cx, to, Body::Ack(ack));
        }
    }
}
