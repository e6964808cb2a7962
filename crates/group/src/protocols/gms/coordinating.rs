//! The coordinator's part: requests become views, and members acknowledge views.

use super::{ACKS, BUNDLE, Gms, PENDING_MAX, Role, STABLE_SUSPENDED_MAX, policy};
use crate::wire::{self, JoinRsp, ViewForm};
use crate::{
    Address, Answer, Control, Cx, DeltaView, Digest, DropReason, Flags, GmsKind, Payload, Query, View, ViewId,
};

#[derive(Default)]
pub(super) struct Pending {
    pub(super) joiners: Vec<Address>,
    pub(super) leavers: Vec<Address>,
    pub(super) suspects: Vec<Address>,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.joiners.len() + self.leavers.len() + self.suspects.len()
    }

    /// Drops changes that a new view has settled. A member that does not lead drops all joiners and suspects:
    /// the coordinator handles them. The detectors repeat suspicions that still hold, but never a withdrawal.
    pub(super) fn keep_members(&mut self, view: &View, leads: bool) {
        self.leavers.retain(|member| view.contains(member));
        self.suspects.retain(|member| leads && view.contains(member));
        self.joiners.retain(|member| leads && !view.contains(member));
    }

    fn add(list: &mut Vec<Address>, member: &Address) -> bool {
        if list.contains(member) || list.len() >= PENDING_MAX {
            return false;
        }
        list.push(member.clone());
        true
    }
}

pub(super) struct Acks {
    pub(super) missing: Vec<Address>,
    has_joiners: bool,
}

impl Gms {
    pub(super) fn join_req(&mut self, cx: &mut Cx<'_>, joiner: &Address) {
        if !self.is_coordinating || self.is_leaving() || !self.is_server() || cx.is_local(joiner) {
            return;
        }
        if self.pending.joiners.len() >= PENDING_MAX {
            return cx.count_drop(DropReason::QueueFull, |book| format!("join of {}", book.member(joiner)));
        }
        Pending::add(&mut self.pending.joiners, joiner);
        self.request_view(cx);
    }

    pub(super) fn leave_req(&mut self, cx: &mut Cx<'_>, leaver: &Address) {
        if !self.is_server() || cx.is_local(leaver) {
            return;
        }
        let Some(view) = cx.view() else { return };
        if !view.contains(leaver) {
            // The member has left already and did not get the response.
            if self.is_coordinating {
                Self::leave_rsp(cx, leaver);
            }
            return;
        }
        Pending::add(&mut self.pending.leavers, leaver);
        self.take_over_or_pass_on(cx);
    }

    pub(super) fn suspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        let Some(view) = cx.view().cloned() else { return };
        for member in members.iter().filter(|member| view.contains(member) && !cx.is_local(member)) {
            Pending::add(&mut self.pending.suspects, member);
            if let Some(acks) = &mut self.acks {
                acks.missing.retain(|missing| missing != member);
            }
        }
        self.acks_may_be_complete(cx);
        self.take_over_or_pass_on(cx);
    }

    /// Returns whether this member leads once all leavers and suspects are gone. A leaver never does.
    fn would_lead(&self, cx: &Cx<'_>) -> bool {
        !self.is_leaving()
            && cx.view().is_some_and(|view| {
                let left =
                    policy::remaining(&*self.policy, view, &self.pending.leavers, &self.pending.suspects);
                left.first() == Some(cx.local())
            })
    }

    fn take_over_or_pass_on(&mut self, cx: &mut Cx<'_>) {
        if self.would_lead(cx) {
            if !self.is_coordinating {
                tracing::debug!("taking over as coordinator");
                self.is_coordinating = true;
                self.has_sent_view = false;
            }
            self.request_view(cx);
        } else if self.is_leaving() {
            self.ask_to_leave(cx);
        }
    }

    pub(super) fn request_view(&mut self, cx: &mut Cx<'_>) {
        if self.acks.is_some() || self.merge.is_some() || cx.is_armed(BUNDLE) || self.pending.len() == 0 {
            return;
        }
        if self.config.view_bundling {
            cx.arm(BUNDLE, self.config.max_bundling_time);
        } else {
            self.make_view(cx);
        }
    }

    pub(super) fn make_view(&mut self, cx: &mut Cx<'_>) {
        if self.acks.is_some() || self.merge.is_some() || !self.is_coordinating || !self.would_lead(cx) {
            return;
        }
        let Some(view) = cx.view().cloned() else { return };
        let own_digest = match cx.ask(&Query::Digest) {
            Some(Answer::Digest(digest)) => digest,
            _ => Digest::default(),
        };
        let mut pending = std::mem::take(&mut self.pending);
        pending.joiners.retain(|joiner| {
            let is_new = !view.contains(joiner);
            if !is_new {
                self.join_again(cx, &view, &own_digest, joiner);
            }
            is_new
        });
        if pending.len() == 0 {
            return;
        }
        let members = self.policy.next(view.members(), &pending.joiners, &pending.leavers, &pending.suspects);
        let Some(creator) = members.first().cloned() else { return };
        let id = ViewId { creator, id: self.highest_view.max(view.id().id) + 1 };
        let next = View::new(id, members);
        let join_rsp = (!pending.joiners.is_empty()).then(|| {
            cx.control(&Control::SuspendStable(STABLE_SUSPENDED_MAX));
            #[cfg(feature = "injected-bugs")]
            if cx.has_bug(crate::InjectedBug::JoinDigestWrong) {
                let mut wrong = own_digest.clone();
                wrong.entries.iter_mut().for_each(|row| row.highest_delivered += 1);
                return join_rsp(&next, &wrong);
            }
            join_rsp(&next, &own_digest)
        });
        for leaver in &pending.leavers {
            Self::leave_rsp(cx, leaver);
        }
        let awaited = next.members().to_vec();
        self.announce(cx, &view, next, None, awaited);
        if let (Some(rsp), Some(acks)) = (join_rsp, &mut self.acks) {
            acks.has_joiners = true;
            for joiner in &pending.joiners {
                Self::send(
                    cx,
                    Some(joiner),
                    Self::header(GmsKind::JoinRsp),
                    Flags::NONE,
                    Payload::Bytes(Some(rsp.clone())),
                );
            }
        }
        self.acks_may_be_complete(cx);
    }

    /// Installs a view and multicasts it. Waits for the acknowledgements of `awaited`, except this member's.
    pub(super) fn announce(
        &mut self,
        cx: &mut Cx<'_>,
        previous: &View,
        next: View,
        digest: Option<&Digest>,
        mut awaited: Vec<Address>,
    ) {
        let sends_delta = self.config.use_delta_views && self.has_sent_view;
        #[cfg(feature = "injected-bugs")]
        let sends_delta = sends_delta || cx.has_bug(crate::InjectedBug::StaleDeltaView);
        let form = if sends_delta && !next.is_merge() {
            ViewForm::Delta(difference(previous, &next))
        } else {
            ViewForm::Full(next.clone())
        };
        let is_merge = next.is_merge();
        awaited.retain(|member| !cx.is_local(member));
        let has_joiners = self.acks.take().is_some_and(|acks| acks.has_joiners);
        self.acks = Some(Acks { missing: awaited, has_joiners });
        self.install(cx, next.clone());
        self.has_sent_view = !is_merge;
        if next.len() > 1 {
            let flags =
                Flags::NO_FC | Flags::NO_RELAY | if is_merge { Flags::NO_TOTAL_ORDER } else { Flags::NONE };
            let payload = wire::encode_view_and_digest(Some(&form), digest);
            Self::send(cx, None, Self::header(GmsKind::View), flags, Payload::Bytes(Some(payload)));
        }
        cx.arm(ACKS, self.config.view_ack_collection_timeout);
    }

    fn join_again(&self, cx: &mut Cx<'_>, view: &View, own_digest: &Digest, joiner: &Address) {
        if own_digest.has_members(view.members()) {
            let rsp =
                JoinRsp { view: Some(view.clone()), digest: Some(own_digest.clone()), fail_reason: None };
            let payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
            Self::send(cx, Some(joiner), Self::header(GmsKind::JoinRsp), Flags::OOB, payload);
        }
    }

    pub(super) fn leave_rsp(cx: &mut Cx<'_>, leaver: &Address) {
        let flags = Flags::OOB | Flags::NO_RELIABILITY;
        Self::send(cx, Some(leaver), Self::header(GmsKind::LeaveRsp), flags, Payload::Empty);
    }

    pub(super) fn acked(&mut self, cx: &mut Cx<'_>, member: &Address) {
        if let Some(acks) = &mut self.acks {
            acks.missing.retain(|missing| missing != member);
            self.acks_may_be_complete(cx);
        }
    }

    pub(super) fn acks_late(&mut self, cx: &mut Cx<'_>) {
        if let Some(acks) = &mut self.acks {
            self.unconfirmed_views += u64::from(!acks.missing.is_empty());
            if self.config.log_collect_msgs && !acks.missing.is_empty() {
                let missing = cx.shared().book.members(&acks.missing);
                tracing::warn!(?missing, "members have not confirmed the view");
            }
            acks.missing.clear();
            self.acks_may_be_complete(cx);
        }
    }

    pub(super) fn acks_may_be_complete(&mut self, cx: &mut Cx<'_>) {
        let Some(acks) = self.acks.take_if(|acks| acks.missing.is_empty()) else { return };
        cx.disarm(ACKS);
        if acks.has_joiners {
            cx.control(&Control::ResumeStable);
        }
        if self.is_coordinating && matches!(self.role, Role::Member) {
            self.request_view(cx);
        }
    }
}

/// Returns the response to joiners: the view and its members' seqnos before it.
fn join_rsp(view: &View, own_digest: &Digest) -> bytes::Bytes {
    let mut digest = Digest::default();
    for member in view.members() {
        let (hd, hr) =
            own_digest.get(member).map_or((0, 0), |row| (row.highest_delivered, row.highest_received));
        digest.set(member.clone(), hd, hr);
    }
    let rsp = JoinRsp { view: Some(view.clone()), digest: Some(digest), fail_reason: None };
    wire::encode_join_rsp(&rsp)
}

fn difference(previous: &View, next: &View) -> DeltaView {
    let not_in = |view: &View, other: &View| -> Vec<Address> {
        view.members().iter().filter(|member| !other.contains(member)).cloned().collect()
    };
    DeltaView {
        id: next.id().clone(),
        reference: previous.id().clone(),
        left: not_in(previous, next),
        joined: not_in(next, previous),
    }
}
