//! Responses to recent changes: a request that comes again is answered, and not carried out again.
//!
//! A member sends its pending requests again when a new coordinator asks for them. A request that the new coordinator has carried
//! out just before would count twice.

use std::collections::{BTreeMap, VecDeque};

use consort_group::Address;
use consort_group::wire::{CounterMessage, CounterOwner};

use super::limits::RECENT_RESPONSES_MAX;

#[derive(Default)]
pub(super) struct RecentResponses {
    responses: BTreeMap<CounterOwner, CounterMessage>,
    order: VecDeque<CounterOwner>,
}

impl RecentResponses {
    pub(super) fn get(&self, owner: &CounterOwner) -> Option<&CounterMessage> {
        self.responses.get(owner)
    }

    pub(super) fn insert(&mut self, owner: CounterOwner, response: CounterMessage) {
        if self.order.len() >= RECENT_RESPONSES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.responses.remove(&oldest);
        }
        if self.responses.insert(owner.clone(), response).is_none() {
            self.order.push_back(owner);
        }
    }

    /// A member that comes back under the same address begins its numbers anew.
    pub(super) fn retain(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.responses.retain(|owner, _| is_member(&owner.member));
        self.order.retain(|owner| is_member(&owner.member));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consort_group::Uuid;

    #[test]
    fn responses_are_bounded_in_number_and_those_of_former_members_are_dropped() {
        let member = |n: u64| Address::Uuid(Uuid { most: n, least: n });
        let owner = |n: u64, request_id| CounterOwner { member: member(n), request_id };
        let mut recent = RecentResponses::default();
        for id in 0..=RECENT_RESPONSES_MAX as i64 {
            recent.insert(owner(id as u64 % 2, id), CounterMessage::ResendPending);
        }
        assert_eq!(recent.responses.len(), RECENT_RESPONSES_MAX);
        assert!(recent.get(&owner(0, 0)).is_none() && recent.get(&owner(1, 1)).is_some());
        recent.retain(|one| *one == member(1));
        assert_eq!((recent.responses.len(), recent.order.len()), (512, 512));
    }
}
