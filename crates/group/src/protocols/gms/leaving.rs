//! Leaving: a remaining member makes the view without this member.

use super::{Gms, LEAVE, Role, policy};
use crate::{Address, Cx, Event, Flags, GmsKind, Payload};

impl Gms {
    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        match self.role {
            Role::Idle => cx.raise(Event::Disconnected),
            Role::Joining(_) => {
                cx.raise(Event::Connected(Err("the join was cancelled by a leave".to_owned())));
                self.left(cx);
            }
            Role::Leaving { .. } => {}
            Role::Member => {
                self.role = Role::Leaving { asked: None };
                cx.arm(LEAVE, self.config.leave_timeout);
                self.ask_to_leave(cx);
            }
        }
    }

    /// Sends a leave request, once, to the member that will make the next view. The request also lists the
    /// other known leavers, because a leaving coordinator makes no views.
    pub(super) fn ask_to_leave(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = cx.view().cloned() else { return };
        let local = cx.local().clone();
        let coordinator = view.coordinator().filter(|first| {
            **first != local
                && !self.pending.leavers.contains(first)
                && !self.pending.suspects.contains(first)
        });
        let next = match coordinator {
            Some(coordinator) => Some(coordinator.clone()),
            None => {
                let mut leavers = self.pending.leavers.clone();
                leavers.push(local.clone());
                policy::remaining(&*self.policy, &view, &leavers, &self.pending.suspects).into_iter().next()
            }
        };
        let Some(next) = next else {
            // All members leave.
            return self.left(cx);
        };
        let is_coordinator = view.coordinator() == Some(&local);
        let passed_on = self.pending.leavers.clone();
        let Role::Leaving { asked } = &mut self.role else { return };
        #[cfg(feature = "injected-bugs")]
        let before = asked.clone();
        let is_asked = asked.as_ref() == Some(&next);
        *asked = Some(next.clone());
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::LeaverNotPassedOn) {
            if before.is_none() {
                Self::leave_request(cx, &next, &local);
            }
            return;
        }
        for leaver in passed_on.iter().filter(|leaver| **leaver != next) {
            Self::leave_request(cx, &next, leaver);
        }
        if !is_asked || is_coordinator {
            Self::leave_request(cx, &next, &local);
        }
    }

    fn leave_request(cx: &mut Cx<'_>, to: &Address, leaver: &Address) {
        let mut header = Self::header(GmsKind::LeaveReq);
        header.member = Some(leaver.clone());
        Self::send(cx, Some(to), header, Flags::OOB, Payload::Empty);
    }

    /// Handles a view during a leave: a new coordinator needs a new request.
    pub(super) fn coordinator_may_have_changed(&mut self, cx: &mut Cx<'_>) {
        if self.is_leaving() {
            self.ask_to_leave(cx);
        }
    }

    pub(super) fn left(&mut self, cx: &mut Cx<'_>) {
        self.forget_group(cx);
        cx.lower(Event::Disconnect);
        cx.raise(Event::Disconnected);
    }
}
