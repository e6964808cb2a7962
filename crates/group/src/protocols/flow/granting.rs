//! The receiver's side: the credits that each sender has used, and when they return.
//!
//! Members install views at different moments, and a paused one may miss some. So senders outside the view are
//! counted, too, and the count continues in the view; otherwise the sender would lose these credits for good. If only
//! the sender has restarted its count, credits return early. (JGroups counts members only and forgets leavers; its
//! senders request credits after `max_block_time`.)

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{Address, ProbeOut, Time, View};

/// Invented senders or leavers cannot grow the table; a forgotten sender may once wait for `max_block_time`.
pub(super) const NON_MEMBER_SENDERS_MAX: usize = 1_000;

/// Requests that were repeated while the network was blocked arrive together, and are for the same credits.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(1);

struct Sender {
    /// The credits left by this member's count.
    left: u64,
    /// The bytes delivered and not yet consumed.
    outstanding: u64,
    /// The last request was granted in part, because it was unclear which messages were lost.
    is_owed: bool,
    replaced_at: Option<Time>,
    /// Replacements since consumed bytes last returned; messages taken for lost may still arrive through a merge.
    replacements: u64,
}

impl Sender {
    const fn new(max: u64) -> Self {
        Self { left: max, outstanding: 0, is_owed: false, replaced_at: None, replacements: 0 }
    }
}

pub(super) struct CreditGrants {
    max: u64,
    min: u64,
    senders: BTreeMap<Address, Sender>,
    /// The oldest is first.
    non_members: VecDeque<Address>,
}

impl CreditGrants {
    pub(super) const fn new(max: u64, min: u64) -> Self {
        Self { max, min, senders: BTreeMap::new(), non_members: VecDeque::new() }
    }

    /// Credits return when a sender has this many left.
    pub(super) const fn min(&self) -> u64 {
        self.min
    }

    /// Counts continue. Returns the senders that requested credits before they were in this view, and must again. Messages before
    /// a sender's digest never arrive here, so they return no credits.
    pub(super) fn view(&mut self, view: &View) -> Vec<Address> {
        let mut owed = Vec::new();
        for non_member in self.non_members.iter().filter(|non_member| view.contains(non_member)) {
            let is_owed = self.senders.get_mut(non_member).map(|sender| &mut sender.is_owed);
            if is_owed.is_some_and(std::mem::take) {
                owed.push(non_member.clone());
            }
        }
        self.non_members.retain(|non_member| !view.contains(non_member));
        for sender in self.senders.keys().filter(|sender| !view.contains(sender)) {
            if !self.non_members.contains(sender) {
                self.non_members.push_back(sender.clone());
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
        for non_member in
            self.non_members.drain(..self.non_members.len().saturating_sub(NON_MEMBER_SENDERS_MAX))
        {
            self.senders.remove(&non_member);
        }
    }

    fn sender(&mut self, address: &Address) -> &mut Sender {
        if !self.senders.contains_key(address) {
            self.non_members.push_back(address.clone());
            self.bound();
        }
        let max = self.max;
        self.senders.entry(address.clone()).or_insert_with(|| Sender::new(max))
    }

    pub(super) fn delivered(&mut self, sender: &Address, bytes: u64) {
        self.sender(sender).outstanding += bytes;
    }

    /// A receiver that consumes nothing returns none.
    pub(super) fn consumed(&mut self, sender: &Address, bytes: u64) -> Option<u64> {
        let (max, min) = (self.max, self.min);
        let sender = self.sender(sender);
        sender.outstanding = sender.outstanding.saturating_sub(bytes);
        // More bytes than all credits: the sender got the credits of the excess already.
        sender.left = sender.left.saturating_sub(bytes).max(sender.outstanding.min(max));
        if sender.left > min {
            return None;
        }
        let granted = max - sender.left;
        sender.left = max;
        sender.replacements = 0;
        Some(granted)
    }

    /// JGroups grants the whole request; this member only credits of consumed bytes, so that waiting does not bypass
    /// a slow receiver.
    ///
    /// The rest is replaced if it may be lost, as around a join or a merge. If it may be in transit (certain with a
    /// gap), or was just replaced, the sender requests again later ([`Self::settled`]).
    pub(super) fn requested(&mut self, now: Time, sender: &Address, bytes: u64, has_gap: bool) -> u64 {
        let max = self.max;
        self.sender(sender);
        let is_non_member = self.non_members.contains(sender);
        let sender = self.sender(sender);
        let consumed = max - std::mem::replace(&mut sender.left, max);
        let not_received = bytes.saturating_sub(consumed + sender.outstanding);
        let is_answered = sender.replaced_at.is_some_and(|at| now.since(at) < ANSWER_TIME);
        let is_unknown = not_received > 0 && (has_gap || is_answered);
        sender.is_owed = is_unknown || is_non_member;
        if not_received == 0 || is_unknown {
            return consumed.min(bytes);
        }
        sender.replaced_at = Some(now);
        sender.replacements += 1;
        (consumed + not_received).min(bytes).min(max)
    }

    /// Returns true once, when a member with an unclear request has no gap any more.
    pub(super) fn settled(&mut self, sender: &Address, has_gap: impl FnOnce() -> bool) -> bool {
        let non_members = &self.non_members;
        let owed = self.senders.get_mut(sender).filter(|owed| owed.is_owed && !non_members.contains(sender));
        owed.is_some_and(|sender| {
            sender.is_owed = has_gap();
            !sender.is_owed
        })
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        let all = self.senders.iter();
        let lines = all.map(|(member, sender)| format!("{member}: {} {}\n", sender.left, sender.outstanding));
        out.put("credits_of_senders", lines.collect::<String>());
        let replaced = self.senders.iter().filter(|(_, sender)| sender.replacements > 0);
        let lines = replaced.map(|(member, sender)| format!("{member}: {}\n", sender.replacements));
        out.put("replacements_of_senders", lines.collect::<String>());
    }
}
