//! A cache with a store: pending writes to the store, and the acknowledgements that wait for them.
//!
//! Every change of a key in memory requests a write of the key's entry at that time ([`Store::note_changed`]). Acknowledgements
//! wait until all earlier writes are stored ([`crate::replica::CacheReplica::acknowledge`]), so that those of many operations
//! share the store's time. Requests are numbered and end in order. An acknowledgement takes a number without a request.
//!
//! A write that the store has refused stays in memory. Its caller receives [`OperationError::StoreWriteFailed`], and the key is
//! remembered and tried again. Meanwhile this member, as a primary, refuses new writes, except removals.

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

/// The time until a refused write is tried again: retries do not free space on a full disk.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Writes that are retried at a time.
const RETRIES: usize = 64;

/// Keys that are retried. Beyond this limit, callers of all keys receive `NotStored`, and a key beyond it is stored with its next
/// write.
const UNSAVED_MAX: usize = 65_536;

/// Pending writes beyond which no more is requested from other owners: several chunks, so that the store is never idle.
const WRITES_MAX: usize = 16_384;

/// The persistence state of a cache with a store.
#[derive(Default)]
pub(crate) struct Persistence {
    passivation: bool,
    /// The state from before this incarnation, until the first topology decides whether it is valid.
    pub(crate) remembered: Option<PersistedState>,
    next: u64,
    waits: BTreeMap<u64, Wait>,
    /// Keys with a pending write, and the number of the last. The store may refuse the write of an entry that leaves memory
    /// meanwhile.
    writing: BTreeMap<Place, u64>,
    pub(crate) loads: BTreeMap<u64, Loading>,
    /// Values that have left memory and must stay available: of writes that have a record or are not stored.
    held: BTreeMap<Place, Held>,
    /// Values loaded for the requests that are handled now.
    pub(crate) at_hand: BTreeMap<Place, Entry>,
    unsaved: BTreeSet<Place>,
    /// The reason of the store's last failure.
    pub(crate) why: Option<StoreFailure>,
    /// Bulk removals that the store has refused.
    pub(crate) owed: Owed,
    /// The topology to confirm once it is persisted.
    confirms: Option<u32>,
    /// Whether the store has refused the state to persist.
    is_forgetful: bool,
    /// Whether the store's entries are not those of the cache.
    is_stale: bool,
    pub(crate) retried: Time,
    /// Whether the coordinator is to be notified, once all transferred segments are stored.
    owes_pulled: bool,
    /// Segments whose transfer pauses until the store has caught up.
    paused: VecDeque<Segment>,
}

/// A value that has left memory.
struct Held {
    entry: Entry,
    /// Whether the value is held until it is stored, whether or not a record needs it.
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

    /// Returns whether periodic work is pending.
    pub(crate) fn needs_look(&self) -> bool {
        !self.held.is_empty() || self.is_failing() || self.is_forgetful
    }

    fn is_failing(&self) -> bool {
        self.owed.is_any() || !self.unsaved.is_empty()
    }

    /// Returns whether the store has refused a key's current entry. Refused keys beyond [`UNSAVED_MAX`] are not remembered, so
    /// then all keys count as refused.
    fn has_refused(&self, place: &Place) -> bool {
        self.owed.has(place.0) || self.unsaved.len() >= UNSAVED_MAX || self.unsaved.contains(place)
    }

    /// Notes that the store has refused a key's current entry.
    fn note_unsaved(&mut self, cx: &mut Cx, place: Place) {
        if self.unsaved.len() < UNSAVED_MAX {
            self.unsaved.insert(place);
        } else {
            cx.counters.unsaved += 1;
        }
    }

    /// Returns a value that is not in the container.
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

    /// Notes that a key has changed in memory, and which entries were evicted for it. `was_passive`: only the store had the
    /// value.
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

    /// Notes that a value is in memory again.
    pub(crate) fn note_activated(&mut self, shared: &Shared, cx: &mut Cx, place: Place) {
        if self.persistence.as_ref().is_some_and(|persistence| persistence.passivation) {
            self.write(shared, cx, place);
        }
    }

    /// Notes that values were evicted from memory.
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

    /// Puts an entry whose value does not fit into memory.
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

    /// Holds a needed value that does not fit into memory and that the store has.
    pub(crate) fn hold(&mut self, place: Place, entry: Entry) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.entry(place).or_insert(Held { entry, is_awaited: false });
    }

    /// Notes that entries have expired.
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

    /// Requests a write of a key's current entry. Returns whether there is an entry to write.
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

    /// Requests a bulk operation of the store.
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

    /// Defers an action until all earlier requests have ended. Returns the action if there are none.
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

    /// Returns why this member, as a primary, refuses a write of a segment. Removals are accepted, because they may free space in
    /// the store, and the store reserves space for them.
    pub(crate) fn store_refusal(&self, cx: &Cx, segment: Segment, change: &Change) -> Option<OperationError> {
        let persistence = self.persistence.as_ref().filter(|persistence| persistence.is_failing())?;
        if matches!(change, Change::Remove) && !persistence.owed.has(segment) {
            return None;
        }
        Some(OperationError::StoreUnavailable { member: cx.local.clone().into(), why: self.failure() })
    }

    /// Returns whether the next chunk of a segment has to wait for the store. It is then requested later.
    pub(crate) fn must_pause(&mut self, segment: Segment) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let is_behind = persistence.waits.len() >= WRITES_MAX;
        if is_behind && !persistence.paused.contains(&segment) {
            persistence.paused.push_back(segment);
        }
        is_behind
    }

    /// Notes the result of a request. Returns whether the installed topology is persisted by it, so that it may be confirmed.
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

    /// Returns the first action that waits, if all requests before it have ended.
    pub(crate) fn next_barrier(&mut self) -> Option<Then> {
        let first = self.persistence.as_mut()?.waits.first_entry()?;
        if !matches!(first.get(), Wait::Barrier(_)) {
            return None;
        }
        if let Wait::Barrier(then) = first.remove() { Some(then) } else { None }
    }

    /// Returns whether the store has refused a key's current entry.
    pub(crate) fn has_refused(&self, place: &Place) -> bool {
        self.persistence.as_ref().is_some_and(|persistence| persistence.has_refused(place))
    }

    /// Returns whether the report of received segments has to wait, because the store fails. It is due when the store has
    /// recovered.
    pub(crate) fn delays_pulled(&mut self) -> bool {
        let Some(persistence) = self.persistence.as_mut().filter(|one| one.is_failing()) else {
            return false;
        };
        persistence.owes_pulled = true;
        true
    }

    /// Returns whether the report of received segments is due that a failing store has delayed. It is due once.
    pub(crate) fn takes_owed_pulled(&mut self) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let is_due = persistence.owes_pulled && !persistence.is_failing();
        persistence.owes_pulled &= !is_due;
        is_due
    }

    /// Returns a segment whose next chunk the store has room for.
    pub(crate) fn next_unpaused(&mut self) -> Option<Segment> {
        let persistence = self.persistence.as_mut().filter(|one| one.waits.len() < WRITES_MAX / 2)?;
        persistence.paused.pop_front()
    }

    /// Retries refused writes, and drops held values that are no longer needed.
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

    /// Persists the state that a restart needs.
    pub(crate) fn remember(&mut self, shared: &Shared, cx: &mut Cx, is_void: bool) {
        let Some(topology) = shared.topology().filter(|_| self.is_backed()).cloned() else { return };
        // While a clear of the store is pending, none of its entries is valid after a restart.
        let is_void = is_void || self.persistence.as_ref().is_some_and(|one| one.owed.clear);
        let remembered =
            PersistedState { member: cx.local.clone(), config: shared.config.clone(), topology, is_void };
        self.order(shared, cx, StoreOrder::Remember(remembered.encode()));
    }

    /// Returns the persisted state with which this member returns.
    pub(crate) fn restored(&self) -> Option<Restored> {
        let remembered = self.persistence.as_ref()?.remembered.as_ref()?;
        let (formerly, topology) = (remembered.member.clone(), remembered.topology.clone());
        Some(Restored { formerly, topology })
    }

    /// Returns the id of the newest topology installed in an earlier incarnation; 0 if there was none.
    pub(crate) fn remembered_id(&self) -> u32 {
        let remembered = self.persistence.as_ref().and_then(|one| one.remembered.as_ref());
        remembered.map_or(0, |remembered| remembered.topology.id)
    }

    /// Marks the store's entries as stale, because other members have continued without them.
    pub(crate) fn abandon_store(&mut self) {
        if let Some(persistence) = &mut self.persistence {
            persistence.remembered = None;
            persistence.is_stale = true;
        }
    }

    /// Persists a topology that is being installed, before any change depends on it. Other members wait for its confirmation.
    /// Otherwise a member that returns alone would continue from a topology that the other members have replaced.
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

    /// Returns whether the installed topology must be persisted before it is confirmed.
    pub(crate) fn confirms_later(&self, shared: &Shared) -> bool {
        let id = shared.topology_id();
        self.persistence.as_ref().is_some_and(|persistence| persistence.confirms == Some(id))
    }

    /// Returns whether the installed topology is the one with this id and is now persisted.
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

    /// Discards all entries of the store.
    fn clear_store(&mut self, shared: &Shared, cx: &mut Cx) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.clear();
        persistence.unsaved.clear();
        persistence.paused.clear();
        self.order(shared, cx, StoreOrder::Clear);
    }

    /// Drops the store's entries of a segment that this member no longer owns.
    pub(crate) fn note_dropped(&mut self, shared: &Shared, cx: &mut Cx, segment: Segment) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.retain(|place, _| place.0 != segment);
        persistence.unsaved.retain(|place| place.0 != segment);
        if cx.has(InjectedBug::StoreKept) {
            return;
        }
        self.order(shared, cx, StoreOrder::RemoveSegment(segment));
    }

    /// Persists the state as the cache closes here. A member that owns segments keeps their entries for its restart. A member
    /// that has handed over all segments clears its store, and waits for the other members at its restart.
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
    /// Returns whether only the store has the value of a key.
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
