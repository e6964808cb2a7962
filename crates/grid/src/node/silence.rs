//! Members from which nothing comes although something is to come: reads that another owner may answer go there.
//!
//! To be wrong costs nothing but a read at another owner, so this is decided long before a member is suspected to have crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consort_group::{Address, Time};

/// How long a member that was asked for something may send nothing at all, besides the time that its responses take, until reads
/// go to other owners: many round trips.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(500);

/// Which members are silent. Bounded by the view.
#[derive(Default)]
pub(crate) struct Silence {
    /// When a frame last came from each.
    heard: BTreeMap<Address, Time>,
    /// Those that have left a request without any frame for [`SILENT_AFTER`], until one comes.
    unanswering: BTreeSet<Address>,
    /// Those that have missed heartbeats, as the channel says.
    unheard: BTreeSet<Address>,
}

impl Silence {
    /// A frame has come from a member.
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

    /// Members that have missed heartbeats: exactly these.
    pub(crate) fn set_unheard(&mut self, members: &[Address]) {
        self.unheard = members.iter().cloned().collect();
    }

    /// Forgets members that are in the view no more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&Address) -> bool) {
        self.heard.retain(|member, _| is_there(member));
        self.unanswering.retain(&is_there);
        self.unheard.retain(is_there);
    }

    /// Notes that a request is open that a member was sent then and should have answered. Whether it is silent.
    pub(crate) fn note_late(&mut self, target: &Address, sent: Time) -> bool {
        if self.heard.get(target).is_none_or(|at| *at < sent) {
            self.unanswering.insert(target.clone());
        }
        self.contains(target)
    }

    /// Whether a member is silent.
    pub(crate) fn contains(&self, member: &Address) -> bool {
        self.unanswering.contains(member) || self.unheard.contains(member)
    }
}
