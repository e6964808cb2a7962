//! The state that all parts use: configuration, policy, and this member's role.

use std::sync::Arc;
use std::time::Duration;

use super::policy::{MembershipPolicy, remaining};
use super::{GmsConfig, Role};
use crate::{Address, DeltaView, View};

pub(super) struct Group {
    pub(super) config: GmsConfig,
    pub(super) policy: Arc<dyn MembershipPolicy>,
    pub(super) role: Role,
    highest_view: u64,
}

impl Group {
    pub(super) const fn new(config: GmsConfig, policy: Arc<dyn MembershipPolicy>) -> Self {
        Self { config, policy, role: Role::Idle, highest_view: 0 }
    }

    pub(super) const fn is_server(&self) -> bool {
        matches!(self.role, Role::Member | Role::Leaving(_))
    }

    pub(super) const fn is_staying(&self) -> bool {
        matches!(self.role, Role::Member)
    }

    pub(super) const fn is_leaving(&self) -> bool {
        matches!(self.role, Role::Leaving(_))
    }

    pub(super) fn note_view_number(&mut self, number: u64) {
        self.highest_view = self.highest_view.max(number);
    }

    pub(super) fn next_view_number(&self, highest: u64) -> u64 {
        self.highest_view.max(highest) + 1
    }

    pub(super) fn merge_limit(&self) -> Duration {
        self.config.merge_timeout.saturating_mul(2)
    }

    /// Returns the next coordinator first.
    pub(super) fn remaining(&self, view: &View, leavers: &[Address], suspects: &[Address]) -> Vec<Address> {
        remaining(&*self.policy, view, leavers, suspects)
    }

    pub(super) fn apply(&self, own: &View, delta: &DeltaView) -> Option<View> {
        if *own.id() != delta.reference {
            return None;
        }
        let members = self.policy.next(own.members(), &delta.joined, &delta.left, &[]);
        Some(View::new(delta.id.clone(), members))
    }
}
