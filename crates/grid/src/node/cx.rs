//! What all caches of a member share: who it is, what it has under way, and what it says to others.

use std::collections::{BTreeMap, VecDeque};

use consort_group::{Address, Time};

use super::NodeEvent;
use super::calls::Calls;
use super::records::Watermarks;
use crate::command::{Body, CacheId, Command};
use crate::wire::FrameWriter;

/// The part of a [`super::Node`] that its caches use.
pub(crate) struct Cx {
    pub(crate) now: Time,
    pub(crate) local: Address,
    pub(crate) coordinator: Option<Address>,
    pub(crate) calls: Calls,
    pub(crate) watermarks: Watermarks,
    pub(crate) outbox: BTreeMap<Address, FrameWriter>,
    /// Commands to ourselves.
    pub(crate) inner: VecDeque<Command>,
    pub(crate) events: VecDeque<NodeEvent>,
    pub(crate) counters: Counters,
}

/// What was unusual, for people who look for causes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Commands that waited for a topology.
    pub deferred: u64,
    /// Commands that were dropped because too many waited already. Their senders send them again.
    pub overflowed: u64,
    /// Operations that were sent again.
    pub repeated: u64,
    /// Backup commands of an older epoch, which were not applied.
    pub outdated: u64,
    /// Frames and commands that could not be read.
    pub malformed: u64,
    /// Commands of a later version, skipped.
    pub unknown: u64,
    /// Writes whose callers had gone, taken over.
    pub adopted: u64,
}

impl Cx {
    pub(crate) fn new(local: Address) -> Self {
        Self {
            now: Time::ZERO,
            local,
            coordinator: None,
            calls: Calls::default(),
            watermarks: Watermarks::default(),
            outbox: BTreeMap::new(),
            inner: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Says something to a member, perhaps to ourselves.
    pub(crate) fn send(&mut self, to: &Address, cache: CacheId, topology: u32, body: Body) {
        if *to == self.local {
            self.inner.push_back(Command { cache, topology, body });
            return;
        }
        match self.outbox.get_mut(to) {
            Some(frame) => frame.push(cache, topology, &body),
            None => {
                let mut frame = FrameWriter::default();
                frame.push(cache, topology, &body);
                self.outbox.insert(to.clone(), frame);
            }
        }
    }

    /// Our own operations finish where we are; those of others are heard of.
    pub(crate) fn note_own_watermark(&mut self) {
        let (local, finished) = (self.local.clone(), self.calls.finished_below());
        self.watermarks.heard(&local, finished);
    }
}
