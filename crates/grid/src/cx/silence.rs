//! Silent members, which owe a response and send no frames: reads go to other owners. A wrong decision only
//! costs such a read, so it is made long before a member is suspected to have crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consort_group::{Address, Time};

/// Many round trips, besides the time of the member's responses.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Silence {
    heard: BTreeMap<Address, Time>,
    /// Members without any frame for [`SILENT_AFTER`] since a request.
    unanswering: BTreeSet<Address>,
    /// Members with missed heartbeats, as the channel reports.
    unheard: BTreeSet<Address>,
}

impl Silence {
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

    pub(crate) fn set_unheard(&mut self, members: &[Address]) {
        self.unheard = members.iter().cloned().collect();
    }

    pub(crate) fn retain(&mut self, is_there: impl Fn(&Address) -> bool) {
        self.heard.retain(|member, _| is_there(member));
        self.unanswering.retain(&is_there);
        self.unheard.retain(is_there);
    }

    pub(crate) fn note_late(&mut self, target: &Address, sent: Time) -> bool {
        if self.heard.get(target).is_none_or(|at| *at < sent) {
            self.unanswering.insert(target.clone());
        }
        self.contains(target)
    }

    pub(crate) fn contains(&self, member: &Address) -> bool {
        self.unanswering.contains(member) || self.unheard.contains(member)
    }
}
