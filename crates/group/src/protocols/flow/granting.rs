//! The receiver's side: what each sender's messages have used, and when it gets credits back.
//!
//! Views do not come to all at the same moment, and who stops for a while may never have seen those without it. So a
//! sender is counted also before it is in the view, and goes on where it was when it is in the view again: what it lacks
//! and we do not know of would be lost to it for good. Where it has begun anew and we have not, it gets credits back
//! earlier than it needs them. (JGroups counts members only and forgets those who leave; its senders ask once they have
//! waited for `max_block_time`.)

use std::collections::{BTreeMap, VecDeque};

use crate::{Address, ProbeOut, View};

/// Senders that are not in the view, and that are counted. A flood of invented ones, or of members that leave, must not
/// grow the table; who is forgotten may have to wait for `max_block_time`, once.
pub(super) const STRANGERS_MAX: usize = 1_000;

/// A sender as this receiver sees it.
struct Sender {
    /// What the sender has left by our count.
    left: u64,
    /// Delivered to the application and not consumed yet.
    outstanding: u64,
}

/// Credits to give back, per sender.
pub(super) struct Granting {
    max: u64,
    min: u64,
    /// Those in the view, and strangers.
    senders: BTreeMap<Address, Sender>,
    /// Those of them that are not in the view, in the order in which they came.
    strangers: VecDeque<Address>,
}

impl Granting {
    pub(super) const fn new(max: u64, min: u64) -> Self {
        Self { max, min, senders: BTreeMap::new(), strangers: VecDeque::new() }
    }

    /// A sender with this much left gets credits back.
    pub(super) const fn min(&self) -> u64 {
        self.min
    }

    /// Who is in the view goes on with what was counted of it before.
    pub(super) fn view(&mut self, view: &View) {
        self.strangers.retain(|stranger| !view.contains(stranger));
        for sender in self.senders.keys().filter(|sender| !view.contains(sender)) {
            if !self.strangers.contains(sender) {
                self.strangers.push_back(sender.clone());
            }
        }
        self.bound();
        for member in view.members() {
            if !self.senders.contains_key(member) {
                self.senders.insert(member.clone(), Sender { left: self.max, outstanding: 0 });
            }
        }
    }

    fn bound(&mut self) {
        for stranger in self.strangers.drain(..self.strangers.len().saturating_sub(STRANGERS_MAX)) {
            self.senders.remove(&stranger);
        }
    }

    fn sender(&mut self, address: &Address) -> &mut Sender {
        if !self.senders.contains_key(address) {
            self.strangers.push_back(address.clone());
            self.bound();
        }
        let max = self.max;
        self.senders.entry(address.clone()).or_insert(Sender { left: max, outstanding: 0 })
    }

    pub(super) fn delivered(&mut self, sender: &Address, bytes: u64) {
        self.sender(sender).outstanding += bytes;
    }

    /// The application is done with messages. Returns the credits that go back now, if enough have gathered: a
    /// receiver that is not done gives none (S000-3).
    pub(super) fn consumed(&mut self, sender: &Address, bytes: u64) -> Option<u64> {
        let (max, min) = (self.max, self.min);
        let sender = self.sender(sender);
        sender.outstanding = sender.outstanding.saturating_sub(bytes);
        sender.left = sender.left.saturating_sub(bytes);
        if sender.left > min {
            return None;
        }
        let granted = max - sender.left;
        sender.left = max;
        Some(granted)
    }

    /// A sender has waited for long and asks. JGroups gives all it asks for; here a sender gets what does not put
    /// more than `max_credits` before the application, so that waiting long enough is no way around a slow receiver.
    /// Somebody of whom nothing has come has nothing outstanding.
    pub(super) fn requested(&mut self, sender: &Address, bytes: u64) -> u64 {
        let Some(sender) = self.senders.get_mut(sender) else { return bytes.min(self.max) };
        let granted = bytes.min(self.max.saturating_sub(sender.outstanding));
        sender.left = (sender.left + granted).min(self.max);
        granted
    }

    /// What each sender has left by our count, and what of its messages the application has not consumed.
    pub(super) fn probe(&self, out: &mut ProbeOut) {
        let all = self.senders.iter();
        let lines = all.map(|(member, sender)| format!("{member}: {} {}\n", sender.left, sender.outstanding));
        out.put("credits_of_senders", lines.collect::<String>());
    }
}
