//! The sender's side of MFC: a multicast uses every member's credits, so the smallest decide.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use std::time::Duration;

use super::{CreditTimeout, SendDecision};
use crate::{Address, Cx, Message, ProbeOut, Time, Transient, View};

/// `limit` is the total bytes that may be sent to a member, so that sending costs the same for any number of members.
pub(super) struct MulticastCredits {
    max: u64,
    sent: u64,
    limits: BTreeMap<Address, u64>,
    limit: u64,
    queue: VecDeque<Message>,
    queued: u64,
    /// The wait began with the first queued message or the last request.
    waiting_since: Time,
    /// They may have counted too little: they joined or merged since the last request, and never get messages before
    /// their digest.
    doubtful: BTreeSet<Address>,
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

    /// `is_merged`: members may have merged since the last view.
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

    /// The injected bug.
    #[cfg(feature = "injected-bugs")]
    pub(super) fn view_without_removals(&mut self, view: &View) {
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
            // The local copy is not looped back, so its credits would not return.
            let was_smallest = *own == self.limit;
            *own += cost;
            if was_smallest {
                self.find_limit();
            }
        }
        true
    }

    /// A DONT_BLOCK message waits only up to `room` bytes.
    pub(super) fn try_send(
        &mut self,
        now: Time,
        local: &Address,
        message: &mut Message,
        length: u64,
        room: u64,
    ) -> SendDecision {
        if self.limits.is_empty() || (self.queue.is_empty() && self.spend(local, message, length)) {
            return SendDecision::Passes;
        }
        if message.transient.has(Transient::DONT_BLOCK) && self.queued + length > room {
            return SendDecision::Dropped;
        }
        if self.queue.is_empty() {
            self.waiting_since = now;
        }
        self.queued += length;
        self.queue.push_back(std::mem::replace(message, Message::empty(None)));
        SendDecision::Queued
    }

    pub(super) fn replenish(&mut self, member: &Address, credits: u64) {
        let most = self.sent + self.max;
        let Some(limit) = self.limits.get_mut(member) else { return };
        if credits == 0 {
            // Zero credits: the response to a request was incomplete.
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

    pub(super) fn due(&self, timeout: CreditTimeout) -> Option<Time> {
        let first = self.queue.front()?.length() as u64;
        let cost = first.min(self.max);
        let lacks = |member| self.limits.get(member).is_some_and(|limit| self.sent + cost > *limit);
        let is_doubtful = self.doubtful.iter().any(lacks);
        Some(self.waiting_since + if is_doubtful { timeout.doubtful } else { timeout.all })
    }

    pub(super) fn overdue(&mut self, now: Time, timeout: CreditTimeout) -> Vec<(Address, u64)> {
        let Some(first) = self.queue.front() else { return Vec::new() };
        let waited = now.since(self.waiting_since);
        if waited < timeout.doubtful {
            return Vec::new();
        }
        let mut lacking = self.lacking(first.length() as u64);
        lacking.retain(|(member, _)| self.doubtful.remove(member) || waited >= timeout.all);
        if waited >= timeout.all || !lacking.is_empty() {
            self.waiting_since = now;
        }
        lacking
    }

    /// There is no delay, because these senders do not wait.
    pub(super) fn dropped(&mut self, now: Time, wait: Duration, length: u64) -> Vec<(Address, u64)> {
        // Queued messages make their own requests.
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

    pub(super) const fn queued_bytes(&self) -> u64 {
        self.queued
    }

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
