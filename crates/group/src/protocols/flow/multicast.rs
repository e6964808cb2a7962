//! The sender's side of MFC: a multicast costs every member, so the one with the fewest credits decides.

use std::collections::{BTreeMap, VecDeque};

use crate::{Address, Cx, Message, ProbeOut, Transient, View};

/// Credits of all members and the queue.
///
/// A member's credits are kept as the total that we may have sent for its sake (`limit`), so that sending costs the
/// same however many members there are.
pub(super) struct MulticastCredits {
    max: u64,
    /// Bytes sent so far.
    sent: u64,
    limits: BTreeMap<Address, u64>,
    /// The smallest of them.
    limit: u64,
    queue: VecDeque<Message>,
    queued: u64,
}

impl MulticastCredits {
    pub(super) const fn new(max: u64) -> Self {
        Self { max, sent: 0, limits: BTreeMap::new(), limit: 0, queue: VecDeque::new(), queued: 0 }
    }

    fn find_limit(&mut self) {
        self.limit = self.limits.values().min().copied().unwrap_or(0);
    }

    pub(super) fn view(&mut self, view: &View) {
        self.limits.retain(|member, _| view.contains(member));
        for member in view.members() {
            if !self.limits.contains_key(member) {
                self.limits.insert(member.clone(), self.sent + self.max);
            }
        }
        self.find_limit();
    }

    fn spend(&mut self, local: &Address, message: &Message, length: u64) -> bool {
        let cost = length.min(self.max);
        if self.sent + cost > self.limit {
            return false;
        }
        self.sent += cost;
        if message.transient.has(Transient::DONT_LOOPBACK)
            && let Some(own) = self.limits.get_mut(local)
        {
            // Our own copy does not come back, and neither would its credits.
            let was_smallest = *own == self.limit;
            *own += cost;
            if was_smallest {
                self.find_limit();
            }
        }
        true
    }

    /// Whether the message may go now; if not it has been taken into the queue.
    pub(super) fn take(&mut self, local: &Address, message: &mut Message, length: u64) -> bool {
        if self.limits.is_empty() {
            return true;
        }
        if self.queue.is_empty() && self.spend(local, message, length) {
            return true;
        }
        self.queued += length;
        self.queue.push_back(std::mem::replace(message, Message::empty(None)));
        false
    }

    pub(super) fn replenish(&mut self, member: &Address, credits: u64) {
        let most = self.sent + self.max;
        let Some(limit) = self.limits.get_mut(member) else { return };
        let was_smallest = *limit == self.limit;
        *limit = limit.saturating_add(credits).min(most);
        if was_smallest {
            self.find_limit();
        }
    }

    pub(super) fn refill(&mut self) {
        for limit in self.limits.values_mut() {
            *limit = self.sent + self.max;
        }
        self.find_limit();
    }

    /// Sends what has credits now. Returns whether something still waits.
    pub(super) fn release(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some(message) = self.queue.pop_front() {
            let length = message.length() as u64;
            let may_pass = self.limits.is_empty() || self.spend(cx.local(), &message, length);
            if !may_pass {
                self.queue.push_front(message);
                return true;
            }
            self.queued -= length;
            cx.send(message);
        }
        false
    }

    /// Whom to ask for credits, and how many: those that the first message in the queue waits for.
    pub(super) fn missing(&self) -> Vec<(Address, u64)> {
        let Some(first) = self.queue.front() else { return Vec::new() };
        let cost = (first.length() as u64).min(self.max);
        self.limits
            .iter()
            .filter(|(_, limit)| self.sent + cost > **limit)
            .map(|(member, limit)| (member.clone(), self.max - limit.saturating_sub(self.sent)))
            .collect()
    }

    pub(super) const fn held(&self) -> u64 {
        self.queued
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put("queued_bytes", self.queued);
        let credits = self
            .limits
            .iter()
            .map(|(member, limit)| format!("{member}: {}\n", limit.saturating_sub(self.sent)));
        out.put("credits", credits.collect::<String>());
    }
}
