//! The sender's side of UFC: credits and a queue per destination, so that a slow member delays no other unicasts.

use std::collections::{BTreeMap, VecDeque};

use super::{CreditTimeout, SendDecision};
use crate::{Address, Cx, Message, ProbeOut, Time, View};

struct Receiver {
    left: u64,
    queue: VecDeque<Message>,
    queued: u64,
    /// The wait began with the first queued message or the last request.
    waiting_since: Time,
    /// It may have counted too little, because it joined or merged since the last request.
    is_doubtful: bool,
}

impl Receiver {
    fn due(&self, timeout: CreditTimeout) -> Time {
        self.waiting_since + if self.is_doubtful { timeout.doubtful } else { timeout.all }
    }
}

/// Destinations outside the view are not controlled: no view change would release their queues.
pub(super) struct UnicastCredits {
    max: u64,
    receivers: BTreeMap<Address, Receiver>,
    blocked: usize,
}

impl UnicastCredits {
    pub(super) const fn new(max: u64) -> Self {
        Self { max, receivers: BTreeMap::new(), blocked: 0 }
    }

    /// `is_merged`: members may have merged since the last view.
    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View, is_merged: bool) {
        for member in view.members() {
            let (max, now) = (self.max, cx.now());
            let receiver = self.receivers.entry(member.clone()).or_insert_with(|| {
                let queue = VecDeque::new();
                Receiver { left: max, queue, queued: 0, waiting_since: now, is_doubtful: true }
            });
            receiver.is_doubtful |= is_merged;
        }
        let gone = self.receivers.extract_if(.., |member, _| !view.contains(member));
        for (_, receiver) in gone {
            self.blocked -= usize::from(!receiver.queue.is_empty());
            // The member may be alive and not see this one. The layers below decide about messages to it.
            receiver.queue.into_iter().for_each(|message| cx.send(message));
        }
    }

    pub(super) fn try_send(&mut self, now: Time, message: &mut Message, length: u64) -> SendDecision {
        let Some(receiver) = message.dest.as_ref().and_then(|dest| self.receivers.get_mut(dest)) else {
            return SendDecision::Passes;
        };
        let cost = length.min(self.max);
        if receiver.queue.is_empty() && receiver.left >= cost {
            receiver.left -= cost;
            return SendDecision::Passes;
        }
        if receiver.queue.is_empty() {
            self.blocked += 1;
            receiver.waiting_since = now;
        }
        receiver.queued += length;
        receiver.queue.push_back(std::mem::replace(message, Message::empty(None)));
        SendDecision::Queued
    }

    pub(super) fn replenish(&mut self, member: &Address, credits: u64) {
        if let Some(receiver) = self.receivers.get_mut(member) {
            receiver.left = receiver.left.saturating_add(credits).min(self.max);
            // Zero credits: the response to a request was incomplete.
            receiver.is_doubtful |= credits == 0;
        }
    }

    pub(super) fn refill(&mut self) {
        for receiver in self.receivers.values_mut() {
            receiver.left = self.max;
        }
    }

    pub(super) fn release(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.blocked == 0 {
            return false;
        }
        for receiver in self.receivers.values_mut().filter(|receiver| !receiver.queue.is_empty()) {
            while let Some(message) = receiver.queue.front() {
                let length = message.length() as u64;
                let cost = length.min(self.max);
                if receiver.left < cost {
                    break;
                }
                receiver.left -= cost;
                receiver.queued -= length;
                receiver.waiting_since = cx.now();
                if let Some(message) = receiver.queue.pop_front() {
                    cx.send(message);
                }
            }
            self.blocked -= usize::from(receiver.queue.is_empty());
        }
        self.blocked > 0
    }

    pub(super) fn due(&self, timeout: CreditTimeout) -> Option<Time> {
        let waiting = self.receivers.values().filter(|receiver| !receiver.queue.is_empty());
        waiting.map(|receiver| receiver.due(timeout)).min()
    }

    pub(super) fn overdue(&mut self, now: Time, timeout: CreditTimeout) -> Vec<(Address, u64)> {
        let max = self.max;
        let waiting = self.receivers.iter_mut().filter(|(_, receiver)| !receiver.queue.is_empty());
        waiting
            .filter(|(_, receiver)| receiver.due(timeout) <= now)
            .map(|(member, receiver)| {
                receiver.is_doubtful = false;
                receiver.waiting_since = now;
                (member.clone(), max - receiver.left)
            })
            .collect()
    }

    pub(super) const fn blocked(&self) -> usize {
        self.blocked
    }

    pub(super) fn queued_bytes(&self, dest: &Address) -> u64 {
        self.receivers.get(dest).map_or(0, |receiver| receiver.queued)
    }

    pub(super) fn waiting(&self) -> u64 {
        self.receivers.values().map(|receiver| receiver.queued).sum()
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.receivers.values().map(|receiver| self.max - receiver.left).sum()
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put("queued_bytes", self.waiting());
        let credits =
            self.receivers.iter().map(|(member, receiver)| format!("{member}: {}\n", receiver.left));
        out.put("credits", credits.collect::<String>());
        let doubtful = self.receivers.iter().filter(|(_, receiver)| receiver.is_doubtful);
        let doubtful = doubtful.map(|(member, receiver)| format!("{member}: {}\n", receiver.left));
        out.put("doubtful_credits", doubtful.collect::<String>());
    }
}
