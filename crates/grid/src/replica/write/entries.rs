use std::time::Duration;

use bytes::Bytes;
use consort_group::Time;

use crate::container::NewEntry;
use crate::cx::Cx;
use crate::encoded_entries::{EncodedEntries, EntryRef};
use crate::operation::Stored;
use crate::replica::Shared;
use crate::replica::store::Store;
use crate::{Entry, Full, Lifetime, Segment, Version};

impl Store {
    /// A decision does not count as a use. The value is missing if only the store has it.
    pub(crate) fn entry(&self, shared: &Shared, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let entry = shared.container.peek(segment, key).filter(|entry| !entry.is_expired(now))?;
        Some(if entry.is_passive() { self.with_value(segment, key, entry) } else { entry })
    }

    /// Like [`Store::entry`], unless the entry has expired on all members.
    pub(crate) fn kept(&self, shared: &Shared, now: Time, segment: Segment, key: &[u8]) -> Option<Entry> {
        let may_live = |entry: &Entry| !entry.is_expired(now) || shared.is_shared() && entry.is_idle(now);
        let entry = shared.container.peek(segment, key).filter(may_live)?;
        Some(if entry.is_passive() { self.with_value(segment, key, entry) } else { entry })
    }

    /// Like [`Store::entry`], even if the entry has expired.
    pub(crate) fn held(&self, shared: &Shared, segment: Segment, key: &[u8]) -> Option<Entry> {
        let entry = shared.container.peek(segment, key)?;
        Some(if entry.is_passive() { self.with_value(segment, key, entry) } else { entry })
    }

    /// Reads by another member or a caller count as a use.
    pub(crate) fn stored(&self, shared: &Shared, now: Time, segment: Segment, key: &[u8]) -> Option<Stored> {
        let entry = shared.container.get(segment, key, || now);
        let entry =
            if self.is_backed() { entry.or_else(|| self.entry(shared, now, segment, key)) } else { entry };
        entry.filter(|entry| !entry.is_passive()).map(|entry| Stored::of(entry, now))
    }

    pub(crate) fn put_new(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        value: Bytes,
        version: Version,
        lifetime: Lifetime,
    ) -> Result<Option<Entry>, Full> {
        let now = cx.now;
        shared.note_lifetime(cx, lifetime, Duration::ZERO, Duration::ZERO);
        let entry = Entry { value, version, created: now, last_used: now, lifetime };
        let was_passive = self.is_backed() && shared.is_passive(segment, key);
        let put = shared.container.put(segment, key, entry, now)?;
        self.note_changed(shared, cx, segment, key, was_passive, put.evicted);
        Ok(put.previous)
    }

    /// A known entry or removal that is as new stays.
    pub(crate) fn put_copy(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        stored: Stored,
    ) {
        let now = cx.now;
        shared.note_lifetime(cx, stored.lifetime, stored.age, stored.idle);
        let was_passive = self.is_backed() && shared.is_passive(segment, key);
        if was_passive && shared.container.version_of(segment, key) == stored.version {
            // The sender may soon request the value from this member.
            let place = (segment, Bytes::copy_from_slice(key));
            match shared.container.activate(segment, key, stored.version, stored.value.clone()) {
                Ok(evicted) => {
                    self.note_activated(shared, cx, place);
                    self.note_evicted(shared, cx, evicted);
                }
                Err(_) => self.hold(place, stored.into_entry(now)),
            }
            return;
        }
        let version = stored.version;
        let again = self.is_backed().then(|| stored.clone());
        if let Some(stored) = again.clone().filter(|_| cx.memory.is_critical()) {
            // The value is then in the store only.
            if shared.container.version_of(segment, key) < version {
                self.put_passive(shared, cx, segment, key, stored.into_entry(now));
            }
            return;
        }
        match shared.container.put_if_newer(segment, key, stored.into_entry(now), now) {
            Ok(Some(put)) => self.note_changed(shared, cx, segment, key, was_passive, put.evicted),
            Ok(None) => {}
            // There is no room for an entry that the primary had room for: its value is then in the store only.
            Err(_) => match again {
                Some(stored) => self.put_passive(shared, cx, segment, key, stored.into_entry(now)),
                // Without a store the entry is lacking, as if evicted. The previous entry is not kept in its place.
                None if shared.container.peek(segment, key).is_some() => {
                    self.erase(shared, cx, segment, key, version);
                }
                None => {}
            },
        }
    }

    pub(crate) fn put_copies(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        copies: &EncodedEntries,
    ) {
        if self.is_backed() || shared.container.bound().is_some() {
            for (key, stored) in copies.parts() {
                if self.is_backed() && stored.is_over() {
                    shared.put_over(cx, segment, &key, stored);
                } else {
                    self.put_copy(shared, cx, segment, &key, stored);
                }
            }
            return;
        }
        let (container, now) = (shared.container.clone(), cx.now);
        let arrivals = copies.iter().map(|copy| {
            let (EntryRef { key, value, .. }, stamp) = (copy, copy.stamp());
            shared.note_lifetime(cx, stamp.lifetime, stamp.age, stamp.idle);
            NewEntry {
                key,
                value,
                version: stamp.version,
                created: stamp.created(now),
                last_used: stamp.last_used(now),
                lifetime: stamp.lifetime,
            }
        });
        container.insert_batch(segment, arrivals, now);
    }

    pub(crate) fn erase(
        &mut self,
        shared: &mut Shared,
        cx: &mut Cx,
        segment: Segment,
        key: &[u8],
        version: Version,
    ) {
        let was_passive = self.is_backed() && shared.is_passive(segment, key);
        if shared.container.remove_if_newer(segment, key, version, cx.now).is_some() {
            self.note_changed(shared, cx, segment, key, was_passive, Vec::new());
        }
    }

    fn with_value(&self, segment: Segment, key: &[u8], entry: Entry) -> Entry {
        let place = (segment, Bytes::copy_from_slice(key));
        let known = self.persistence.as_ref().and_then(|one| one.value_of(&place, entry.version));
        known.map_or(entry.clone(), |known| Entry { value: known.value.clone(), ..entry })
    }
}

impl Shared {
    /// The entry was written `age` ago and used `idle` ago.
    fn note_lifetime(&mut self, cx: &mut Cx, lifetime: Lifetime, age: Duration, idle: Duration) {
        for (span, past) in [(lifetime.lifespan, age), (lifetime.max_idle, idle)] {
            if let Some(span) = span {
                cx.note_expiry(cx.now + span.saturating_sub(past));
            }
        }
        self.has_max_idle |= lifetime.max_idle.is_some();
    }

    /// Keeps an expired entry of unreported expiration: neither the store nor this member needs its value.
    pub(crate) fn put_over(&self, cx: &mut Cx, segment: Segment, key: &[u8], stored: Stored) {
        cx.note_expiry(cx.now);
        // The entry without its value always fits.
        let _ = self.container.put_if_newer(segment, key, stored.into_entry(cx.now).passivated(), cx.now);
    }
}
