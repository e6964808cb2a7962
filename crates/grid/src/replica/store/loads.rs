//! Values that only the store has: a request waits until they are loaded, and is handled again. Only a call
//! brings the entry back to memory; a transfer and an iteration leave memory unchanged, so that a full
//! iteration evicts nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Address;

use crate::command::{Call, Fetch, Pull};
use crate::cx::Cx;
use crate::cx::calls::CALLS_MAX;
use crate::operation::{Action, Condition, StoreFailure};
use crate::persistence::{Loaded, StoreRequest};
use crate::replica::Shared;
use crate::replica::store::Place;
use crate::replica::store::Store;
use crate::{Entry, Flags, Segment, Version};

/// The size of one answer.
const LOAD_BYTES: usize = 256 * 1024;

pub(crate) const LOAD_KEYS: usize = 256;

/// As many as a caller may have operations. Beyond it commands are dropped; their senders repeat them.
const LOADS_MAX: usize = CALLS_MAX;

pub(crate) type Found = BTreeMap<Place, Entry>;

pub(crate) struct Loading {
    asked: Vec<(Place, Version)>,
    waiting: Vec<AwaitingLoad>,
}

pub(crate) enum AwaitingLoad {
    Call { from: Address, topology: u32, call: Call },
    Pull { from: Address, pull: Pull, found: Found },
    Fetch { from: Address, fetch: Fetch },
    Merge(Segment),
}

fn needs_value(action: &Action) -> bool {
    match action {
        Action::Read(_) => true,
        Action::Write(write) => write.wants_previous || matches!(write.condition, Condition::Value(_)),
    }
}

impl Store {
    /// `tells_previous`: a listener receives previous values.
    pub(crate) fn must_load(
        &self,
        shared: &Shared,
        cx: &Cx,
        segment: Segment,
        call: &Call,
        tells_previous: impl Fn() -> bool,
    ) -> bool {
        let Some(persistence) = &self.persistence else { return false };
        let is_told = || matches!(call.action, Action::Write(_)) && tells_previous();
        if call.flags.contains(Flags::SKIP_LOAD) || !needs_value(&call.action) && !is_told() {
            return false;
        }
        let Some(entry) = shared.container.peek(segment, &call.key) else { return false };
        entry.is_passive()
            && !entry.is_expired(cx.now)
            && persistence.value_of(&(segment, call.key.clone()), entry.version).is_none()
    }

    pub(crate) fn load_for_call(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        segment: Segment,
        from: &Address,
        call: Call,
    ) {
        let place = (segment, Bytes::copy_from_slice(&call.key));
        let version = shared.container.version_of(segment, &call.key);
        let waiting = AwaitingLoad::Call { from: from.clone(), topology: shared.topology_id(), call };
        let Some(persistence) = &mut self.persistence else { return };
        let is_same = |loading: &&mut Loading| {
            matches!(&loading.asked[..], [(other, asked)] if *other == place && *asked == version)
                && loading.waiting.len() < LOADS_MAX
        };
        // Calls that wait for the same value share one load.
        match persistence.loads.values_mut().rev().take(64).find(is_same) {
            Some(loading) => loading.waiting.push(waiting),
            None => self.load(shared, cx, vec![(place, version)], waiting),
        }
    }

    pub(crate) fn load(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        asked: Vec<(Place, Version)>,
        waiting: AwaitingLoad,
    ) {
        let Some(persistence) = &mut self.persistence else { return };
        if persistence.loads.len() >= LOADS_MAX {
            cx.counters.overflowed += 1;
            return;
        }
        let number = persistence.number();
        let keys = asked.iter().map(|(place, _)| place.clone()).collect();
        persistence.loads.insert(number, Loading { asked, waiting: vec![waiting] });
        let request = StoreRequest::Load { number, keys, bytes_max: LOAD_BYTES };
        cx.store.push_back((shared.id, request));
    }

    pub(crate) fn note_loaded(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        number: u64,
        result: Result<Loaded, StoreFailure>,
    ) -> Option<(Vec<AwaitingLoad>, Found, Option<StoreFailure>)> {
        let Loading { asked, waiting } = self.persistence.as_mut()?.loads.remove(&number)?;
        let mut found = Found::new();
        let mut failure = result.as_ref().err().cloned();
        for ((place, version), stored) in asked.into_iter().zip(result.unwrap_or_default()) {
            match stored.filter(|stored| stored.version == version) {
                Some(stored) => {
                    found.insert(place, stored.into_entry(cx.now));
                }
                None => {
                    let present = shared.container.peek(place.0, &place.1);
                    if present.is_some_and(|entry| entry.is_passive() && entry.version == version) {
                        failure = Some("the store lost an entry that it had accepted".into());
                    }
                }
            }
        }
        let is_for_calls = waiting
            .iter()
            .any(|waiting| matches!(waiting, AwaitingLoad::Call { .. } | AwaitingLoad::Merge(_)));
        if is_for_calls {
            self.activate(shared, cx, &found);
        }
        if let Some(persistence) = self.persistence.as_mut().filter(|_| is_for_calls) {
            persistence.at_hand = found.clone();
        }
        Some((waiting, found, failure))
    }

    pub(crate) fn forget_at_hand(&mut self) {
        if let Some(persistence) = &mut self.persistence {
            persistence.at_hand.clear();
        }
    }

    fn activate(&mut self, shared: &mut Shared, cx: &mut Cx, found: &Found) {
        for ((segment, key), entry) in found {
            if shared.container.state(*segment) == crate::SegmentState::Absent {
                continue;
            }
            let was_passive = shared.is_passive(*segment, key);
            let Ok(evicted) = shared.container.activate(*segment, key, entry.version, entry.value.clone())
            else {
                continue;
            };
            if was_passive && !shared.is_passive(*segment, key) {
                self.note_activated(shared, cx, (*segment, key.clone()));
            }
            self.note_evicted(shared, cx, evicted);
        }
    }

    pub(crate) fn fill(
        &self,
        segment: Segment,
        entries: &mut [(Bytes, Entry)],
        found: &Found,
    ) -> Vec<(usize, Place, Version)> {
        let Some(persistence) = &self.persistence else { return Vec::new() };
        let mut missing = Vec::new();
        for (nth, (key, entry)) in entries.iter_mut().enumerate() {
            if !entry.is_passive() {
                continue;
            }
            let place = (segment, key.clone());
            let known = found.get(&place).filter(|known| known.version == entry.version);
            match known.or_else(|| persistence.value_of(&place, entry.version)) {
                Some(known) => entry.value = known.value.clone(),
                None => missing.push((nth, place, entry.version)),
            }
        }
        missing
    }
}
