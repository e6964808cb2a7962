//! The receiver's side: what each sender's messages have used, and when it gets credits back.

use std::collections::BTreeMap;

use crate::{Address, View};

/// A sender as this receiver sees it.
struct Sender {
    /// What the sender has left by our count.
    left: u64,
    /// Delivered to the application and not consumed yet.
    outstanding: u64,
}

/// Credits to give back, per sender in the view.
pub(super) struct Granting {
    max: u64,
    min: u64,
    senders: BTreeMap<Address, Sender>,
}

impl Granting {
    pub(super) const fn new(max: u64, min: u64) -> Self {
        Self { max, min, senders: BTreeMap::new() }
    }

    /// A sender with this much left gets credits back.
    pub(super) const fn min(&self) -> u64 {
        self.min
    }

    pub(super) fn view(&mut self, view: &View) {
        self.senders.retain(|sender, _| view.contains(sender));
        for member in view.members() {
            if !self.senders.contains_key(member) {
                self.senders.insert(member.clone(), Sender { left: self.max, outstanding: 0 });
            }
        }
    }

    pub(super) fn delivered(&mut self, sender: &Address, bytes: u64) {
        if let Some(sender) = self.senders.get_mut(sender) {
            sender.outstanding += bytes;
        }
    }

    /// The application is done with messages. Returns the credits that go back now, if enough have gathered: a
    /// receiver that is not done gives none (S000-3).
    pub(super) fn consumed(&mut self, sender: &Address, bytes: u64) -> Option<u64> {
        let sender = self.senders.get_mut(sender)?;
        sender.outstanding = sender.outstanding.saturating_sub(bytes);
        sender.left = sender.left.saturating_sub(bytes);
        if sender.left > self.min {
            return None;
        }
        let granted = self.max - sender.left;
        sender.left = self.max;
        Some(granted)
    }

    /// A sender has waited for long and asks. JGroups gives all it asks for; here a sender gets what does not put
    /// more than `max_credits` before the application, so that waiting long enough is no way around a slow receiver.
    /// Somebody who is not a member yet has nothing outstanding.
    pub(super) fn requested(&mut self, sender: &Address, bytes: u64) -> u64 {
        let Some(sender) = self.senders.get_mut(sender) else { return bytes.min(self.max) };
        let granted = bytes.min(self.max.saturating_sub(sender.outstanding));
        sender.left = (sender.left + granted).min(self.max);
        granted
    }
}
