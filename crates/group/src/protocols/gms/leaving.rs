//! Leaving: a remaining member makes the view without this one.

use super::messages::send_leave_req;
use super::{Gms, LEAVE, Role};
use crate::{Address, Cx, Event};

#[derive(Default)]
pub(super) struct Leave {
    asked: Option<Address>,
}

impl Leave {
    /// The own request is sent once, except by a coordinator.
    fn request(&mut self, cx: &mut Cx<'_>, next: &Address, others: &[Address], is_coordinator: bool) {
        let local = cx.local().clone();
        let before = self.asked.replace(next.clone());
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::LeaverNotPassedOn) {
            if before.is_none() {
                send_leave_req(cx, next, &local);
            }
            return;
        }
        for leaver in others.iter().filter(|leaver| *leaver != next) {
            send_leave_req(cx, next, leaver);
        }
        if before.as_ref() != Some(next) || is_coordinator {
            send_leave_req(cx, next, &local);
        }
    }
}

impl Gms {
    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        match self.group.role {
            Role::Idle => cx.raise(Event::Disconnected),
            Role::Joining(_) => {
                cx.raise(Event::Connected(Err("the join was cancelled by a leave".to_owned())));
                self.left(cx);
            }
            Role::Leaving(_) => {}
            Role::Member => {
                self.group.role = Role::Leaving(Leave::default());
                cx.arm(LEAVE, self.group.config.leave_timeout);
                self.ask_to_leave(cx);
            }
        }
    }

    /// The request names other leavers, too, because a leaving coordinator makes no views.
    pub(super) fn ask_to_leave(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = cx.view().cloned() else { return };
        let local = cx.local().clone();
        let pending = &self.coordinator.pending;
        let coordinator = view.coordinator().filter(|first| {
            **first != local && !pending.leavers.contains(first) && !pending.suspects.contains(first)
        });
        let next = match coordinator {
            Some(coordinator) => Some(coordinator.clone()),
            None => {
                let mut leavers = pending.leavers.clone();
                leavers.push(local.clone());
                self.group.remaining(&view, &leavers, &pending.suspects).into_iter().next()
            }
        };
        let Some(next) = next else {
            // All members leave.
            return self.left(cx);
        };
        if let Role::Leaving(leave) = &mut self.group.role {
            leave.request(cx, &next, &pending.leavers, view.coordinator() == Some(&local));
        }
    }

    /// A new coordinator needs a new request.
    pub(super) fn coordinator_may_have_changed(&mut self, cx: &mut Cx<'_>) {
        if self.group.is_leaving() {
            self.ask_to_leave(cx);
        }
    }

    pub(super) fn left(&mut self, cx: &mut Cx<'_>) {
        self.forget_group(cx);
        cx.lower(Event::Disconnect);
        cx.raise(Event::Disconnected);
    }
}
