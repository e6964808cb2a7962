//! Operations wait here that would send to a member without room. Responses to other members and state
//! transfer are sent in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use consort_channel::SendCapacity;
use consort_group::Address;

pub(crate) struct Backpressure {
    closed: BTreeSet<Address>,
    touched: BTreeSet<Address>,
    submitted: u64,
    /// Request bytes between two cycles: the limit of one member, so that none gets more.
    burst: u64,
    parked: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl Default for Backpressure {
    fn default() -> Self {
        Self {
            closed: BTreeSet::new(),
            touched: BTreeSet::new(),
            submitted: 0,
            burst: u64::MAX,
            parked: BTreeMap::new(),
            next_ticket: 0,
        }
    }
}

impl Backpressure {
    pub(crate) fn has_room(&self) -> bool {
        self.closed.is_empty() && self.submitted < self.burst
    }

    pub(crate) fn is_blocked(&self, member: &Address) -> bool {
        self.submitted >= self.burst || self.closed.contains(member)
    }

    pub(crate) fn note_request(&mut self, bytes: u64) {
        self.submitted += bytes;
    }

    pub(crate) fn note_sent(&mut self, member: &Address) {
        if !self.touched.contains(member) {
            self.touched.insert(member.clone());
        }
    }

    /// Wakes the operation when there may be room. Returns its ticket.
    pub(crate) fn park(&mut self, ticket: Option<u64>, waker: Waker) -> u64 {
        let ticket = ticket.unwrap_or_else(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        self.parked.insert(ticket, waker);
        ticket
    }

    pub(crate) fn leave(&mut self, ticket: u64) {
        self.parked.remove(&ticket);
    }

    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub(crate) fn take_parked(&mut self) -> BTreeMap<u64, Waker> {
        std::mem::take(&mut self.parked)
    }

    pub(crate) fn wants_refresh(&self) -> bool {
        self.submitted > 0 || !self.touched.is_empty() || !self.closed.is_empty()
    }

    /// Ends a cycle. Calls `report` with each member that got a request or had no room, and whether it has room now. Returns the
    /// waiting operations if there is more room than before.
    pub(crate) fn refresh(
        &mut self,
        room: &SendCapacity<'_>,
        mut report: impl FnMut(&Address, bool),
    ) -> BTreeMap<u64, Waker> {
        let was_spent = self.submitted >= self.burst;
        self.submitted = 0;
        self.burst = room.burst_bytes();
        let before = self.closed.len();
        let mut is_open = |member: &Address| {
            let is_open = room.is_open(Some(member));
            report(member, is_open);
            is_open
        };
        self.closed.retain(|member| !is_open(member));
        let has_opened = self.closed.len() < before || was_spent;
        for member in std::mem::take(&mut self.touched) {
            if !self.closed.contains(&member) && !is_open(&member) {
                self.closed.insert(member);
            }
        }
        if has_opened { self.take_parked() } else { BTreeMap::new() }
    }

    pub(crate) fn keep(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.closed.retain(&is_member);
        self.touched.retain(is_member);
    }
}
