//! The membership policy: the members of the next view, in order.

use crate::{Address, View};

/// The members of new views. All members need the same policy, because they apply it to delta views.
pub trait MembershipPolicy: Send + Sync {
    /// Returns the next members, given the current ones, joiners, leavers and suspects.
    fn next(
        &self,
        current: &[Address],
        joiners: &[Address],
        leavers: &[Address],
        suspects: &[Address],
    ) -> Vec<Address>;

    /// Returns the members of a merged view, given each subgroup's.
    fn merge(&self, subgroups: &[Vec<Address>]) -> Vec<Address>;
}

/// JGroups' default: old members keep their order, joiners come last; after a merge the smallest coordinator is first, others
/// follow by subgroup.
#[derive(Clone, Copy, Default, Debug)]
pub struct DefaultPolicy;

impl MembershipPolicy for DefaultPolicy {
    fn next(
        &self,
        current: &[Address],
        joiners: &[Address],
        leavers: &[Address],
        suspects: &[Address],
    ) -> Vec<Address> {
        let mut members: Vec<Address> = current
            .iter()
            .filter(|member| !leavers.contains(member) && !suspects.contains(member))
            .cloned()
            .collect();
        for joiner in joiners {
            if !members.contains(joiner) {
                members.push(joiner.clone());
            }
        }
        members
    }

    fn merge(&self, subgroups: &[Vec<Address>]) -> Vec<Address> {
        let mut members: Vec<Address> =
            subgroups.iter().filter_map(|members| members.first()).min().cloned().into_iter().collect();
        for member in subgroups.iter().flatten() {
            if !members.contains(member) {
                members.push(member.clone());
            }
        }
        members
    }
}

pub(super) fn remaining(
    policy: &dyn MembershipPolicy,
    view: &View,
    leavers: &[Address],
    suspects: &[Address],
) -> Vec<Address> {
    policy.next(view.members(), &[], leavers, suspects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    fn members(numbers: &[u64]) -> Vec<Address> {
        numbers.iter().map(|&n| member(n)).collect()
    }

    #[test]
    fn joiners_come_last_and_other_members_keep_their_order() {
        let next =
            DefaultPolicy.next(&members(&[3, 1, 2, 5]), &members(&[4, 1]), &members(&[3]), &members(&[2]));
        assert_eq!(next, members(&[1, 5, 4]));
    }

    #[test]
    fn the_smallest_coordinator_leads_a_merged_view() {
        let merged = DefaultPolicy.merge(&[members(&[5, 1]), members(&[3, 2]), members(&[4, 3])]);
        assert_eq!(merged, members(&[3, 5, 1, 2, 4]), "1 is smaller, but led no subgroup");
    }
}
