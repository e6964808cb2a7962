//! Silent members, which owe a response and send no frames. Reads that another owner may answer go to that owner.
//!
//! A wrong decision only costs a read at another owner, so it is made long before a member is suspected to have crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consort_group::{Address, Time};

/// The time that a member with an outstanding response may send no frame, besides the time that its responses take, until reads
/// go to other owners: many round trips.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The silent members. Bounded by the view.
#[derive(Default)]
pub(crate) struct Silence {
    /// The time of each member's last frame.
    heard: BTreeMap<Address, Time>,
    /// Members that have left a request without any frame for [`SILENT_AFTER`], until a frame arrives.
    unanswering: BTreeSet<Address>,
    /// Members that have missed heartbeats, as the channel reports.
    unheard: BTreeSet<Address>,
}

impl Silence {
    /// Notes a frame of a member.
    pub(crate) fn heard(&mut self, from: &Address, now: Time) {
        match self.heard.get_mut(from) {
            Some(at) => *at = now,
            None => {
                self.heard.insert(from.clone(), now);
            }
        }
        if !self.unanswering.is_empty() {
            self.unanswering.remove(from);
        }
    }

    /// Sets the members that have missed heartbeats.
    pub(crate) fn set_unheard(&mut self, members: &[Address]) {
        self.unheard = members.iter().cloned().collect();
    }

    /// Forgets members that have left the view.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&Address) -> bool) {
        self.heard.retain(|member, _| is_there(member));
        self.unanswering.retain(&is_there);
        self.unheard.retain(is_there);
    }

    /// Notes that a request sent to a member at that time is overdue. Returns whether the member is silent.
    pub(crate) fn note_late(&mut self, target: &Address, sent: Time) -> bool {
        if self.heard.get(target).is_none_or(|at| *at < sent) {
            self.unanswering.insert(target.clone());
        }
        self.contains(target)
    }

    /// Returns whether a member is silent.
    pub(crate) fn contains(&self, member: &Address) -> bool {
        self.unanswering.contains(member) || self.unheard.contains(member)
    }
}
