//! The sender's side of UFC: credits and a queue per destination, so that a slow member holds up nobody else.

use std::collections::{BTreeMap, VecDeque};

use super::{Patience, Taken};
use crate::{Address, Cx, Message, ProbeOut, Time, View};

struct Receiver {
    left: u64,
    queue: VecDeque<Message>,
    queued: u64,
    /// Since when the first message in the queue waits, or when credits were asked for last.
    waiting_since: Time,
    /// It may have counted less than we have sent: we have met or were merged since it was asked.
    is_doubtful: bool,
}

impl Receiver {
    /// When to ask it, if something waits.
    fn due(&self, patience: Patience) -> Time {
        self.waiting_since + if self.is_doubtful { patience.doubtful } else { patience.all }
    }
}

/// Credits per destination. Who is not in the view is not controlled: nothing could release what waits for it.
pub(super) struct UnicastCredits {
    max: u64,
    receivers: BTreeMap<Address, Receiver>,
    /// Destinations with something in the queue.
    blocked: usize,
}

impl UnicastCredits {
    pub(super) const fn new(max: u64) -> Self {
        Self { max, receivers: BTreeMap::new(), blocked: 0 }
    }

    /// A view begins. `is_merged` says whether members may have been merged with us since the last one.
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
            // It may be alive, and just not see us: the layers below know what to do with what is for it.
            receiver.queue.into_iter().for_each(|message| cx.send(message));
        }
    }

    /// Whether the message may go now. Unicasts always wait if they have to.
    pub(super) fn take(&mut self, now: Time, message: &mut Message, length: u64) -> Taken {
        let Some(receiver) = message.dest.as_ref().and_then(|dest| self.receivers.get_mut(dest)) else {
            return Taken::Passes;
        };
        let cost = length.min(self.max);
        if receiver.queue.is_empty() && receiver.left >= cost {
            receiver.left -= cost;
            return Taken::Passes;
        }
        if receiver.queue.is_empty() {
            self.blocked += 1;
            receiver.waiting_since = now;
        }
        receiver.queued += length;
        receiver.queue.push_back(std::mem::replace(message, Message::empty(None)));
        Taken::Waits
    }

    pub(super) fn replenish(&mut self, member: &Address, credits: u64) {
        if let Some(receiver) = self.receivers.get_mut(member) {
            receiver.left = receiver.left.saturating_add(credits).min(self.max);
            // None at all: its answer to what we asked was not all of it.
            receiver.is_doubtful |= credits == 0;
        }
    }

    pub(super) fn refill(&mut self) {
        for receiver in self.receivers.values_mut() {
            receiver.left = self.max;
        }
    }

    /// Sends what has credits now. Returns whether something still waits.
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

    /// When to ask for credits next.
    pub(super) fn due(&self, patience: Patience) -> Option<Time> {
        let waiting = self.receivers.values().filter(|receiver| !receiver.queue.is_empty());
        waiting.map(|receiver| receiver.due(patience)).min()
    }

    /// Whom to ask for credits, and how many: who has let us wait for too long.
    pub(super) fn overdue(&mut self, now: Time, patience: Patience) -> Vec<(Address, u64)> {
        let max = self.max;
        let waiting = self.receivers.iter_mut().filter(|(_, receiver)| !receiver.queue.is_empty());
        waiting
            .filter(|(_, receiver)| receiver.due(patience) <= now)
            .map(|(member, receiver)| {
                receiver.is_doubtful = false;
                receiver.waiting_since = now;
                (member.clone(), max - receiver.left)
            })
            .collect()
    }

    /// How many destinations have something that waits.
    pub(super) const fn blocked(&self) -> usize {
        self.blocked
    }

    pub(super) fn held(&self, dest: &Address) -> u64 {
        self.receivers.get(dest).map_or(0, |receiver| receiver.queued)
    }

    /// Bytes of messages that wait for credits of any destination.
    pub(super) fn waiting(&self) -> u64 {
        self.receivers.values().map(|receiver| receiver.queued).sum()
    }

    /// Bytes for which destinations have not given credits back.
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
