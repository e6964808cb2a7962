//! A cache with a store: what is to be written to it, and who hears that it is.
//!
//! Whatever changes a key in memory asks for a write of what the key has then ([`Cache::note_changed`]). Acknowledgements
//! wait until all writes before them are stored ([`Cache::acknowledge`]), so that those of many operations share the store's
//! time. Requests are numbered and end in order; an acknowledgement is a number that is asked of nobody.
//!
//! A write that the store has not taken stands in memory. Its caller is told ([`OperationError::NotStored`]), the key is
//! remembered and tried again, and meanwhile this member, as a primary, refuses new writes, removals excepted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use super::activation::Loading;
use super::cache::Cache;
use super::cx::Cx;
use super::owed::Owed;
use crate::command::{Ack, Body, Reply, Restored};
use crate::container::Taken;
use crate::operation::{Change, OperationError};
use crate::persistence::{Backing, Remembered, StoreFailure, StoreOrder, StoreRequest};
use crate::planted::Planted;
use crate::{Entry, Segment, Stored};

/// How long what was not stored waits until it is tried again: a full disk is not made emptier by trying.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Writes that are tried again at a time.
const RETRIES: usize = 64;

/// Keys that are tried again. Beyond, callers of all keys are told that theirs is not stored, and the next write of a key
/// counts.
const UNSAVED_MAX: usize = 65_536;

/// Writes under way beyond which no more is pulled from others: several chunks, so that the store is never idle.
const WRITES_MAX: usize = 16_384;

/// A key of a segment.
pub(super) type Place = (Segment, Bytes);

/// What a cache with a store keeps.
#[derive(Default)]
pub(crate) struct Persistence {
    passivation: bool,
    /// What there was before this life, until the first topology says what it is worth.
    pub(super) remembered: Option<Remembered>,
    next: u64,
    waits: BTreeMap<u64, Wait>,
    /// Keys of which a write is under way, and the number of the last: what leaves memory meanwhile the store may refuse.
    writing: BTreeMap<Place, u64>,
    pub(super) loads: BTreeMap<u64, Loading>,
    /// Values that are not in memory any more and must be at hand: of writes that have a record or are not stored.
    held: BTreeMap<Place, Held>,
    /// What was loaded for those who are handled now.
    pub(super) at_hand: BTreeMap<Place, Entry>,
    unsaved: BTreeSet<Place>,
    /// Why the store has failed last.
    pub(super) why: Option<StoreFailure>,
    /// What the store has not removed as a whole.
    pub(super) owed: Owed,
    /// The topology that is to be confirmed once it is remembered.
    confirms: Option<u32>,
    /// What is to be remembered was not stored.
    is_forgetful: bool,
    /// What the store has is not what the cache has.
    is_stale: bool,
    pub(super) retried: Time,
    /// The coordinator is to be told that everything is pulled, once it is stored.
    owes_pulled: bool,
    /// Segments of which no more is pulled before the store has caught up.
    paused: VecDeque<Segment>,
}

/// A value that is not in memory any more.
struct Held {
    entry: Entry,
    /// It is held until the store has it, whoever else needs it.
    is_awaited: bool,
}

/// What a number stands for.
pub(super) enum Wait {
    Write {
        place: Place,
        version: crate::Version,
    },
    RemoveSegment(Segment),
    Clear,
    /// A topology is remembered.
    Remember(u32),
    /// To be done once everything before it is stored.
    Barrier(Then),
}

pub(super) enum Then {
    Ack { place: Place, to: Address, ack: Ack },
    Pulled,
}

impl Persistence {
    pub(super) fn new(backing: Backing) -> Self {
        Self { passivation: backing.passivation, remembered: backing.remembered, ..Self::default() }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether something is to be looked after.
    pub(crate) fn needs_look(&self) -> bool {
        !self.held.is_empty() || self.is_failing() || self.is_forgetful
    }

    fn is_failing(&self) -> bool {
        self.owed.is_any() || !self.unsaved.is_empty()
    }

    /// Whether the store has not taken what a key has. Of keys beyond [`UNSAVED_MAX`] nobody knows which they were.
    fn has_refused(&self, place: &Place) -> bool {
        self.owed.has(place.0) || self.unsaved.len() >= UNSAVED_MAX || self.unsaved.contains(place)
    }

    /// The store has not taken what a key has.
    fn note_unsaved(&mut self, cx: &mut Cx, place: Place) {
        if self.unsaved.len() < UNSAVED_MAX {
            self.unsaved.insert(place);
        } else {
            cx.counters.unsaved += 1;
        }
    }

    /// A value that is not in the container.
    pub(super) fn value_of(&self, place: &Place, version: crate::Version) -> Option<&Entry> {
        let held = || self.held.get(place).map(|held| &held.entry);
        let found = self.at_hand.get(place).or_else(held);
        found.filter(|entry| entry.version == version)
    }
}

impl Cache {
    pub(crate) fn is_backed(&self) -> bool {
        self.persistence.is_some()
    }

    /// Whether the store has the entry of a key alone.
    pub(super) fn is_passive(&self, segment: Segment, key: &[u8]) -> bool {
        self.container.peek(segment, key).is_some_and(|entry| entry.is_passive())
    }

    /// In memory a key has something else now, for which others had to make room. `was_passive`: the store had it alone.
    pub(super) fn note_changed(
        &mut self,
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
            self.write(cx, place);
        }
        self.note_evicted(cx, evicted);
    }

    /// A value is in memory again.
    pub(super) fn note_activated(&mut self, cx: &mut Cx, place: Place) {
        if self.persistence.as_ref().is_some_and(|persistence| persistence.passivation) {
            self.write(cx, place);
        }
    }

    /// Values have gone from memory.
    pub(super) fn note_evicted(&mut self, cx: &mut Cx, evicted: Vec<Taken>) {
        for Taken { segment, key, entry } in evicted {
            let Some(persistence) = &mut self.persistence else { return };
            let place = (segment, key);
            let records = &mut self.segments[usize::from(segment.0)].records;
            let is_needed = persistence.passivation
                || persistence.unsaved.contains(&place)
                || persistence.writing.contains_key(&place) && !cx.has(Planted::WritingForgotten)
                || records.need(&place.1, &cx.watermarks);
            if is_needed {
                let is_awaited = persistence.passivation;
                persistence.held.insert(place.clone(), Held { entry, is_awaited });
            }
            if persistence.passivation {
                self.write(cx, place);
            }
        }
    }

    /// An entry has come for whose value memory has no room.
    pub(super) fn put_passive(&mut self, cx: &mut Cx, segment: Segment, key: &[u8], entry: Entry) {
        // What is left of it always fits.
        let put = self.container.put(segment, key, entry.clone().passivated(), cx.now);
        let (Some(persistence), Ok(_)) = (&mut self.persistence, put) else { return };
        let place = (segment, Bytes::copy_from_slice(key));
        persistence.held.insert(place.clone(), Held { entry, is_awaited: true });
        self.write(cx, place);
    }

    /// A value is needed for which memory has no room; the store has it.
    pub(super) fn hold(&mut self, place: Place, entry: Entry) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.entry(place).or_insert(Held { entry, is_awaited: false });
    }

    /// Entries have expired.
    pub(crate) fn note_expired(&mut self, cx: &mut Cx, expired: Vec<Taken>) {
        for Taken { segment, key, entry } in expired {
            let Some(persistence) = &mut self.persistence else { return };
            let place = (segment, key);
            persistence.held.remove(&place);
            if !persistence.passivation || entry.is_passive() {
                self.write(cx, place);
            }
        }
    }

    /// Has the store take what a key has. Returns whether there is something to be taken.
    fn write(&mut self, cx: &mut Cx, place: Place) -> bool {
        let present = self.container.peek(place.0, &place.1);
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
        cx.store.push_back((self.config.id(), StoreRequest::Write { number, segment, key, entry }));
        true
    }

    /// Has the store do something with many keys.
    pub(super) fn order(&mut self, cx: &mut Cx, order: StoreOrder) {
        let id = self.topology_id();
        let Some(persistence) = &mut self.persistence else { return };
        let number = persistence.number();
        let wait = match order {
            StoreOrder::Remember(_) => Wait::Remember(id),
            StoreOrder::RemoveSegment(segment) => Wait::RemoveSegment(segment),
            StoreOrder::Clear => Wait::Clear,
        };
        persistence.waits.insert(number, wait);
        cx.store.push_back((self.config.id(), StoreRequest::Order { number, order }));
    }

    /// Acknowledges a write to its caller once it is stored here.
    pub(super) fn acknowledge(&mut self, cx: &mut Cx, place: Place, to: Address, ack: Ack) {
        if self.is_backed() {
            self.when_stored(cx, Then::Ack { place, to, ack });
        } else {
            self.send_ack(cx, &to, ack);
        }
    }

    fn send_ack(&mut self, cx: &mut Cx, to: &Address, ack: Ack) {
        if *to == cx.local {
            let local = cx.local.clone();
            cx.calls.ack(&local, ack);
        } else {
            self.send(cx, to, Body::Ack(ack));
        }
    }

    fn when_stored(&mut self, cx: &mut Cx, then: Then) {
        match &mut self.persistence {
            Some(persistence) if !persistence.waits.is_empty() && !cx.has(Planted::StoreNotAwaited) => {
                let number = persistence.number();
                persistence.waits.insert(number, Wait::Barrier(then));
            }
            _ => self.go_on(cx, then),
        }
    }

    /// Everything before this is stored, or has failed.
    fn go_on(&mut self, cx: &mut Cx, then: Then) {
        let Some(persistence) = &mut self.persistence else { return };
        match then {
            Then::Ack { place, to, ack } if persistence.has_refused(&place) => {
                let error =
                    OperationError::NotStored { member: cx.local.clone().into(), why: self.failure() };
                self.reply(cx, &to, ack.number, Reply::Failed(error));
                // It is here all the same, which its caller has to know of all owners before it is finished.
                self.send_ack(cx, &to, ack);
            }
            Then::Ack { to, ack, .. } => self.send_ack(cx, &to, ack),
            Then::Pulled if persistence.is_failing() => persistence.owes_pulled = true,
            Then::Pulled => self.tell_pulled(cx),
        }
    }

    fn failure(&self) -> StoreFailure {
        let why = self.persistence.as_ref().and_then(|persistence| persistence.why.clone());
        why.unwrap_or_else(|| "unknown".into())
    }

    /// Why this member, as a primary, does not begin this write of a segment. Removals may be what makes room in the store, and
    /// it keeps space for them.
    pub(super) fn store_refusal(&self, cx: &Cx, segment: Segment, change: &Change) -> Option<OperationError> {
        let persistence = self.persistence.as_ref().filter(|persistence| persistence.is_failing())?;
        if matches!(change, Change::Remove) && !persistence.owed.has(segment) {
            return None;
        }
        Some(OperationError::StoreFails { member: cx.local.clone().into(), why: self.failure() })
    }

    /// All segments of a rebalance have come: the coordinator is told when they are stored.
    pub(super) fn tell_when_stored(&mut self, cx: &mut Cx) {
        if self.is_backed() {
            self.when_stored(cx, Then::Pulled);
        } else {
            self.tell_pulled(cx);
        }
    }

    /// Whether the next chunk of a segment has to wait for the store. It is asked for later then.
    pub(super) fn must_pause(&mut self, segment: Segment) -> bool {
        let Some(persistence) = &mut self.persistence else { return false };
        let is_behind = persistence.waits.len() >= WRITES_MAX;
        if is_behind && !persistence.paused.contains(&segment) {
            persistence.paused.push_back(segment);
        }
        is_behind
    }

    /// The store has done what was asked under this number, and all before it, or has failed to.
    pub(crate) fn handle_stored(&mut self, cx: &mut Cx, number: u64, result: Result<(), StoreFailure>) {
        let Some(persistence) = &mut self.persistence else { return };
        let wait = persistence.waits.remove(&number);
        if let Some(Wait::Write { place, .. }) = &wait
            && persistence.writing.get(place) == Some(&number)
        {
            persistence.writing.remove(place);
        }
        match (wait, result) {
            // It stands behind a removal that has failed, and goes when that is tried again.
            (Some(Wait::Write { place, .. }), Ok(())) if persistence.owed.has(place.0) => {
                persistence.note_unsaved(cx, place);
            }
            (Some(Wait::Write { place, version }), Ok(())) => {
                if persistence.unsaved.remove(&place) && persistence.writing.is_empty() {
                    // The store takes writes again: the next ones need not wait.
                    persistence.retried = Time::ZERO;
                }
                // With passivation it was held for this; a record may still need it, as without. Of several writes the last one
                // counts: between two of one entry that may be taken out of the store.
                let is_last = !persistence.writing.contains_key(&place);
                let held = persistence.held.get_mut(&place).filter(|_| is_last);
                if let Some(held) = held.filter(|held| held.entry.version == version) {
                    held.is_awaited = false;
                    let records = &mut self.segments[usize::from(place.0.0)].records;
                    let is_needed = records.need(&place.1, &cx.watermarks);
                    if persistence.passivation && (!is_needed || cx.has(Planted::HeldForgotten)) {
                        persistence.held.remove(&place);
                    }
                }
            }
            (Some(Wait::Write { place, .. }), Err(why)) => {
                persistence.why = Some(why);
                persistence.note_unsaved(cx, place);
            }
            (Some(wait @ (Wait::RemoveSegment(_) | Wait::Clear)), result) => {
                self.handle_removed(cx, &wait, result);
            }
            (Some(Wait::Remember(id)), result) => {
                if let Err(why) = result {
                    persistence.why = Some(why);
                    persistence.is_forgetful = true;
                }
                // A store that takes nothing holds up nobody else.
                self.confirm_remembered(cx, id);
            }
            _ => {}
        }
        self.pass_barriers(cx);
    }

    fn pass_barriers(&mut self, cx: &mut Cx) {
        while let Some(persistence) = &mut self.persistence
            && let Some(first) = persistence.waits.first_entry()
            && matches!(first.get(), Wait::Barrier(_))
        {
            if let Wait::Barrier(then) = first.remove() {
                self.go_on(cx, then);
            }
        }
        let Some(persistence) = &mut self.persistence else { return };
        if persistence.owes_pulled && !persistence.is_failing() {
            persistence.owes_pulled = false;
            self.tell_when_stored(cx);
        }
        while let Some(persistence) = &mut self.persistence
            && persistence.waits.len() < WRITES_MAX / 2
            && let Some(segment) = persistence.paused.pop_front()
        {
            self.ask_again(cx, segment);
        }
    }

    /// What was not stored is tried again, and values that nobody needs any more are given up.
    pub(crate) fn look_after_store(&mut self, cx: &mut Cx) {
        cx.note_own_watermark();
        let segments = &mut self.segments;
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
            self.remember(cx, false);
        }
        self.remove_owed(cx);
        for place in again {
            if !self.write(cx, place.clone())
                && let Some(persistence) = &mut self.persistence
            {
                // Only the store has it.
                persistence.unsaved.remove(&place);
            }
        }
    }

    /// Has the store keep what a later life needs to know.
    pub(super) fn remember(&mut self, cx: &mut Cx, is_void: bool) {
        let Some(topology) = self.topology().filter(|_| self.is_backed()).cloned() else { return };
        // While the store has what is to be cleared, nothing in it counts for a later life.
        let is_void = is_void || self.persistence.as_ref().is_some_and(|one| one.owed.clear);
        let remembered =
            Remembered { member: cx.local.clone(), config: self.config.clone(), topology, is_void };
        self.order(cx, StoreOrder::Remember(remembered.encode()));
    }

    /// What this member comes back with.
    pub(crate) fn restored(&self) -> Option<Restored> {
        let remembered = self.persistence.as_ref()?.remembered.as_ref()?;
        let (formerly, topology) = (remembered.member.clone(), remembered.topology.clone());
        Some(Restored { formerly, topology })
    }

    /// The newest topology that was installed in an earlier life; 0 if there was none.
    pub(super) fn remembered_id(&self) -> u32 {
        let remembered = self.persistence.as_ref().and_then(|one| one.remembered.as_ref());
        remembered.map_or(0, |remembered| remembered.topology.id)
    }

    /// Others have gone on without what this member has.
    pub(super) fn give_up_store(&mut self) {
        if let Some(persistence) = &mut self.persistence {
            persistence.remembered = None;
            persistence.is_stale = true;
        }
    }

    /// A topology is installed. It is kept before anything changes that depends on it: also by others, who wait for it to be
    /// confirmed. Whoever comes back alone would else go on from one that others have left behind.
    pub(super) fn begin_life(&mut self, cx: &mut Cx) {
        let id = self.topology_id();
        let Some(persistence) = &mut self.persistence else { return };
        persistence.remembered = None;
        persistence.confirms = (!cx.has(Planted::NoteNotAwaited)).then_some(id);
        if std::mem::take(&mut persistence.is_stale) {
            // Whatever comes between: what is of an earlier life is not taken for one of this.
            self.remember(cx, true);
            self.clear_store(cx);
        }
        self.remember(cx, false);
    }

    /// Whether the installed topology is still to be remembered before it is confirmed.
    pub(super) fn confirms_later(&self) -> bool {
        let id = self.topology_id();
        self.persistence.as_ref().is_some_and(|persistence| persistence.confirms == Some(id))
    }

    fn confirm_remembered(&mut self, cx: &mut Cx, id: u32) {
        // The note before it said that what the store had was void.
        let is_last = |persistence: &Persistence| {
            !persistence.waits.values().any(|wait| matches!(wait, Wait::Remember(other) if *other == id))
        };
        if let Some(persistence) = self.persistence.as_mut().filter(|one| one.confirms == Some(id))
            && is_last(persistence)
        {
            persistence.confirms = None;
            if self.topology_id() == id {
                self.confirm(cx);
            }
        }
    }

    /// What the store has is of no use any more.
    fn clear_store(&mut self, cx: &mut Cx) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.clear();
        persistence.unsaved.clear();
        persistence.paused.clear();
        self.order(cx, StoreOrder::Clear);
    }

    /// A segment is given up.
    pub(super) fn note_dropped(&mut self, cx: &mut Cx, segment: Segment) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.held.retain(|place, _| place.0 != segment);
        persistence.unsaved.retain(|place| place.0 != segment);
        if cx.has(Planted::StoreKept) {
            return;
        }
        self.order(cx, StoreOrder::RemoveSegment(segment));
    }

    /// The cache is closed here. What this member owns to the last is kept for its next life; if it has handed over
    /// everything, others have it, and its next life waits for them.
    pub(crate) fn put_down(&mut self, cx: &mut Cx) {
        let Some(topology) = self.topology().filter(|_| self.is_backed()) else { return };
        if topology.read_owners().segments_of(&cx.local).next().is_none() {
            self.remember(cx, true);
            return self.clear_store(cx);
        }
        let Some(persistence) = self.persistence.as_mut().filter(|one| one.passivation) else { return };
        // From now on the store has everything.
        persistence.passivation = false;
        for segment in (0..self.config.segments).map(Segment) {
            let limits = crate::ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
            let all = self.container.chunk(segment, crate::Cursor::START, limits, cx.now);
            for (key, entry) in all.into_iter().flat_map(|chunk| chunk.entries) {
                if !entry.is_passive() {
                    self.write(cx, (segment, key));
                }
            }
        }
    }
}
