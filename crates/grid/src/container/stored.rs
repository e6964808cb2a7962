use std::fmt;

use bytes::Bytes;
use consort_group::Time;

use super::Taken;
use super::entry::{Deadlines, Entry, Lifetime};
use super::item::Item;
use crate::{Segment, Version};

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) item: Item,
    pub(super) version: Version,
    pub(super) created: Time,
    pub(super) mortal: Option<Box<Mortal>>,
}

#[derive(Clone)]
pub(super) struct Mortal {
    pub(super) lifetime: Lifetime,
    pub(super) last_used: Time,
    /// The deadline in the timers, no later than the end of the entry.
    pub(super) deadline: Time,
}

impl Stored {
    #[inline]
    pub(super) fn entry(&self) -> Entry {
        let (created, last_used, lifetime) = self.times();
        Entry { value: self.item.value(), version: self.version, created, last_used, lifetime }
    }

    #[inline]
    fn times(&self) -> (Time, Time, Lifetime) {
        match &self.mortal {
            None => (self.created, self.created, Lifetime::FOREVER),
            Some(mortal) => (self.created, mortal.last_used, mortal.lifetime),
        }
    }

    pub(super) fn into_taken(self, segment: Segment) -> Taken {
        let entry = self.entry();
        Taken { segment, key: Bytes::copy_from_slice(self.item.key()), entry }
    }

    #[inline]
    pub(super) fn is_passive(&self) -> bool {
        self.item.is_passive()
    }

    pub(super) fn expiry(&self) -> Option<Time> {
        let mortal = self.mortal.as_ref()?;
        mortal.lifetime.end(self.created, mortal.last_used)
    }

    pub(super) fn is_expired(&self, now: Time) -> bool {
        self.expiry().is_some_and(|end| end <= now)
    }

    /// Whether it has expired even if another member has used it.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.mortal.as_ref().is_some_and(|mortal| mortal.lifetime.is_over(self.created, now))
    }

    pub(super) fn note_use(&mut self, at: Time) {
        if let Some(mortal) = self.mortal.as_mut().filter(|mortal| mortal.lifetime.max_idle.is_some()) {
            mortal.last_used = mortal.last_used.max(at);
        }
    }

    pub(super) fn data_len(&self) -> usize {
        self.item.key().len() + self.item.value_len()
    }
}

/// An entry during an iteration.
#[derive(Clone, Copy)]
pub struct Visited<'a>(pub(super) &'a Stored);

impl<'a> Visited<'a> {
    /// The key.
    pub fn key(self) -> &'a [u8] {
        self.0.item.key()
    }

    /// The value; empty if only the store has it.
    pub fn value(self) -> &'a [u8] {
        self.0.item.value_bytes()
    }

    /// The write's version.
    pub fn version(self) -> Version {
        self.0.version
    }

    /// Whether only the store has the value.
    pub fn is_passive(self) -> bool {
        self.0.is_passive()
    }

    pub(super) fn data_len(self) -> usize {
        self.0.data_len()
    }

    pub(super) fn first_bytes(self) -> &'a [u8] {
        self.0.item.first_bytes()
    }

    pub(crate) fn times(self) -> (Time, Time, Lifetime) {
        self.0.times()
    }

    pub(crate) fn used(self, now: Time) -> Option<Time> {
        let mortal = self.0.mortal.as_ref().filter(|mortal| mortal.lifetime.max_idle.is_some())?;
        (mortal.last_used > self.0.created && !self.0.is_expired(now)).then_some(mortal.last_used)
    }

    pub(crate) fn contiguous_bytes(self) -> Option<Bytes> {
        self.0.item.contiguous_bytes()
    }

    /// Returns the entry, valid after the lock is released.
    pub fn entry(self) -> Entry {
        self.0.entry()
    }
}

impl fmt::Debug for Visited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.version(), self.key())
    }
}
