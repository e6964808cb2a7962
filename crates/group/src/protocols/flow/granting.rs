//! The receiver's side: what each sender's messages have used, and when it gets credits back.
//!
//! Views do not come to all at the same moment, and who stops for a while may never have seen those without it. So a
//! sender is counted also before it is in the view, and goes on where it was when it is in the view again: what it lacks
//! and we do not know of would be lost to it for good. Where it has begun anew and we have not, it gets credits back
//! earlier than it needs them. (JGroups counts members only and forgets those who leave; its senders ask once they have
//! waited for `max_block_time`.)

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{Address, ProbeOut, Time, View};

/// Senders that are not in the view, and that are counted. A flood of invented ones, or of members that leave, must not
/// grow the table; who is forgotten may have to wait for `max_block_time`, once.
pub(super) const STRANGERS_MAX: usize = 1_000;

/// An answer is with its sender within this time: whoever asks again before has asked for the same. (What was asked over
/// and over while nothing got through arrives together.)
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(1);

/// A sender as this receiver sees it.
struct Sender {
    /// What the sender has left by our count.
    left: u64,
    /// Delivered to the application and not consumed yet.
    outstanding: u64,
    /// It has asked when what it lacks was not known yet, as when it had us in its view and we did not have it in ours, or
    /// when that had just been given.
    is_owed: bool,
    /// When it was given what was lost to it.
    replaced_at: Option<Time>,
    /// How often that was since credits went back for what was consumed. What was taken for lost may come all the same: a merge
    /// that had begun before brings it.
    replacements: u64,
}

impl Sender {
    const fn new(max: u64) -> Self {
        Self { left: max, outstanding: 0, is_owed: false, replaced_at: None, replacements: 0 }
    }
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

    /// A view begins. Members of the view keep the bytes that were counted of them before. Returns the senders that have to ask for
    /// credits again: they asked before they were in this member's view. Their digest says from which message on this member
    /// receives them; messages before it never arrive and return no credits.
    pub(super) fn view(&mut self, view: &View) -> Vec<Address> {
        let mut owed = Vec::new();
        for stranger in self.strangers.iter().filter(|stranger| view.contains(stranger)) {
            let is_owed = self.senders.get_mut(stranger).map(|sender| &mut sender.is_owed);
            if is_owed.is_some_and(std::mem::take) {
                owed.push(stranger.clone());
            }
        }
        self.strangers.retain(|stranger| !view.contains(stranger));
        for sender in self.senders.keys().filter(|sender| !view.contains(sender)) {
            if !self.strangers.contains(sender) {
                self.strangers.push_back(sender.clone());
            }
        }
        self.bound();
        for member in view.members() {
            if !self.senders.contains_key(member) {
                self.senders.insert(member.clone(), Sender::new(self.max));
            }
        }
        owed
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
        self.senders.entry(address.clone()).or_insert_with(|| Sender::new(max))
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
        // More than the credits together: it has had those of the rest already.
        sender.left = sender.left.saturating_sub(bytes).max(sender.outstanding.min(max));
        if sender.left > min {
            return None;
        }
        let granted = max - sender.left;
        sender.left = max;
        sender.replacements = 0;
        Some(granted)
    }

    /// A sender has waited for long and asks for what it lacks. JGroups gives all of it. Here it gets what the application
    /// has consumed: what lies before that is the application's, so that waiting long enough is no way around a slow
    /// receiver. The rest was never meant for us, as around a join or a merge, and is lost to the sender unless we give it;
    /// or it is still on its way, for certain if there is a gap; or we have given it just now. Then the sender is to ask
    /// again when more is known ([`Self::settled`]).
    pub(super) fn requested(&mut self, now: Time, sender: &Address, bytes: u64, has_gap: bool) -> u64 {
        let max = self.max;
        self.sender(sender);
        let is_stranger = self.strangers.contains(sender);
        let sender = self.sender(sender);
        let consumed = max - std::mem::replace(&mut sender.left, max);
        let elsewhere = bytes.saturating_sub(consumed + sender.outstanding);
        let is_answered = sender.replaced_at.is_some_and(|at| now.since(at) < ANSWER_TIME);
        let is_unknown = elsewhere > 0 && (has_gap || is_answered);
        sender.is_owed = is_unknown || is_stranger;
        if elsewhere == 0 || is_unknown {
            return consumed.min(bytes);
        }
        sender.replaced_at = Some(now);
        sender.replacements += 1;
        (consumed + elsewhere).min(bytes).min(max)
    }

    /// The application goes on: whether this member of the view is owed something and there is no gap any more. Once.
    pub(super) fn settled(&mut self, sender: &Address, has_gap: impl FnOnce() -> bool) -> bool {
        let strangers = &self.strangers;
        let owed = self.senders.get_mut(sender).filter(|owed| owed.is_owed && !strangers.contains(sender));
        owed.is_some_and(|sender| {
            sender.is_owed = has_gap();
            !sender.is_owed
        })
    }

    /// What each sender has left by our count, and what of its messages the application has not consumed.
    pub(super) fn probe(&self, out: &mut ProbeOut) {
        let all = self.senders.iter();
        let lines = all.map(|(member, sender)| format!("{member}: {} {}\n", sender.left, sender.outstanding));
        out.put("credits_of_senders", lines.collect::<String>());
        let replaced = self.senders.iter().filter(|(_, sender)| sender.replacements > 0);
        let lines = replaced.map(|(member, sender)| format!("{member}: {}\n", sender.replacements));
        out.put("replacements_of_senders", lines.collect::<String>());
    }
}
