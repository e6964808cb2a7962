//! The sender's side of MFC: a multicast costs every member, so the one with the fewest credits decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use std::time::Duration;

use super::{Patience, Taken};
use crate::{Address, Cx, Message, ProbeOut, Time, Transient, View};

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
    /// Since when the first message in the queue waits, or when credits were asked for last.
    waiting_since: Time,
    /// Members that may have counted less than we have sent: we have met or were merged since they were asked, and what
    /// came before their digests they never get.
    doubtful: BTreeSet<Address>,
    /// When a message was dropped for lack of credits and they were asked for.
    asked_for_dropped: Option<Time>,
}

impl MulticastCredits {
    pub(super) const fn new(max: u64) -> Self {
        Self {
            max,
            sent: 0,
            limits: BTreeMap::new(),
            limit: 0,
            queue: VecDeque::new(),
            queued: 0,
            waiting_since: Time::ZERO,
            doubtful: BTreeSet::new(),
            asked_for_dropped: None,
        }
    }

    fn find_limit(&mut self) {
        self.limit = self.limits.values().min().copied().unwrap_or(0);
    }

    /// A view begins. `is_merged` says whether members may have been merged with us since the last one.
    pub(super) fn view(&mut self, view: &View, is_merged: bool) {
        self.limits.retain(|member, _| view.contains(member));
        self.doubtful.retain(|member| view.contains(member));
        for member in view.members() {
            let is_new = !self.limits.contains_key(member);
            if is_new {
                self.limits.insert(member.clone(), self.sent + self.max);
            }
            if is_merged || is_new {
                self.doubtful.insert(member.clone());
            }
        }
        self.find_limit();
    }

    /// Who joins is let in, and who is gone stays.
    #[cfg(feature = "planted")]
    pub(super) fn view_forgotten(&mut self, view: &View) {
        for member in view.members() {
            let limit = self.sent + self.max;
            self.limits.entry(member.clone()).or_insert(limit);
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

    /// Whether the message may go now. One that must not block waits only as far as there is `room`.
    pub(super) fn take(
        &mut self,
        now: Time,
        local: &Address,
        message: &mut Message,
        length: u64,
        room: u64,
    ) -> Taken {
        if self.limits.is_empty() || (self.queue.is_empty() && self.spend(local, message, length)) {
            return Taken::Passes;
        }
        if message.transient.has(Transient::DONT_BLOCK) && self.queued + length > room {
            return Taken::Dropped;
        }
        if self.queue.is_empty() {
            self.waiting_since = now;
        }
        self.queued += length;
        self.queue.push_back(std::mem::replace(message, Message::empty(None)));
        Taken::Waits
    }

    pub(super) fn replenish(&mut self, member: &Address, credits: u64) {
        let most = self.sent + self.max;
        let Some(limit) = self.limits.get_mut(member) else { return };
        if credits == 0 {
            // Its answer to what we asked was not all of it.
            self.doubtful.insert(member.clone());
            return;
        }
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
            self.waiting_since = cx.now();
            cx.send(message);
        }
        false
    }

    /// When to ask for credits next.
    pub(super) fn due(&self, patience: Patience) -> Option<Time> {
        let first = self.queue.front()?.length() as u64;
        let cost = first.min(self.max);
        let lacks = |member| self.limits.get(member).is_some_and(|limit| self.sent + cost > *limit);
        let is_doubtful = self.doubtful.iter().any(lacks);
        Some(self.waiting_since + if is_doubtful { patience.doubtful } else { patience.all })
    }

    /// Whom to ask for credits, and how many: those that have let the first message in the queue wait for too long.
    pub(super) fn overdue(&mut self, now: Time, patience: Patience) -> Vec<(Address, u64)> {
        let Some(first) = self.queue.front() else { return Vec::new() };
        let waited = now.since(self.waiting_since);
        if waited < patience.doubtful {
            return Vec::new();
        }
        let mut lacking = self.lacking(first.length() as u64);
        lacking.retain(|(member, _)| self.doubtful.remove(member) || waited >= patience.all);
        if waited >= patience.all || !lacking.is_empty() {
            self.waiting_since = now;
        }
        lacking
    }

    /// A message of this length was dropped. The same, but at once: such senders do not wait.
    pub(super) fn dropped(&mut self, now: Time, wait: Duration, length: u64) -> Vec<(Address, u64)> {
        // What waits in the queue asks on its own.
        if !self.queue.is_empty() || self.asked_for_dropped.is_some_and(|at| now.since(at) < wait) {
            return Vec::new();
        }
        self.asked_for_dropped = Some(now);
        self.lacking(length)
    }

    fn lacking(&self, length: u64) -> Vec<(Address, u64)> {
        let cost = length.min(self.max);
        self.limits
            .iter()
            .filter(|(_, limit)| self.sent + cost > **limit)
            .map(|(member, limit)| (member.clone(), self.max - limit.saturating_sub(self.sent)))
            .collect()
    }

    pub(super) const fn held(&self) -> u64 {
        self.queued
    }

    /// Bytes for which members have not given credits back, summed over members.
    pub(super) fn outstanding(&self) -> u64 {
        self.limits.values().map(|limit| self.max.saturating_sub(limit.saturating_sub(self.sent))).sum()
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put("queued_bytes", self.queued);
        let credits = self
            .limits
            .iter()
            .map(|(member, limit)| format!("{member}: {}\n", limit.saturating_sub(self.sent)));
        out.put("credits", credits.collect::<String>());
        let doubtful = self.limits.iter().filter(|(member, _)| self.doubtful.contains(member));
        let doubtful =
            doubtful.map(|(member, limit)| format!("{member}: {}\n", limit.saturating_sub(self.sent)));
        out.put("doubtful_credits", doubtful.collect::<String>());
    }
}
