//! The coordinator's part: requests become views that members acknowledge.

use super::group::Group;
use super::messages::{header, send, send_leave_rsp};
use super::{ACKS, BUNDLE, Gms, GmsConfig, PENDING_MAX, STABLE_SUSPENDED_MAX};
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

    /// A member that does not lead drops joiners and suspects, too: the detectors repeat suspicions that still hold,
    /// but never a withdrawal.
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

struct Acks {
    missing: Vec<Address>,
    has_joiners: bool,
}

struct NextView {
    previous: View,
    view: View,
    joiners: Vec<Address>,
    join_rsp: Option<bytes::Bytes>,
}

#[derive(Default)]
pub(super) struct Coordinator {
    /// True for the first member, or in place of coordinators that leave or crash.
    pub(super) is_coordinating: bool,
    /// A difference can only follow a full view.
    has_sent_view: bool,
    pub(super) pending: Pending,
    acks: Option<Acks>,
    /// The views that not all members acknowledged in time.
    pub(super) unconfirmed_views: u64,
}

impl Coordinator {
    pub(super) fn forget_group(&mut self) {
        *self = Self { unconfirmed_views: self.unconfirmed_views, ..Self::default() };
    }

    pub(super) fn follow(&mut self, view: &View, leads: bool) {
        if leads && !self.is_coordinating {
            self.has_sent_view = false;
        }
        self.is_coordinating = leads;
        self.pending.keep_members(view, leads);
        if let Some(acks) = &mut self.acks {
            acks.missing.retain(|member| view.contains(member));
        }
    }

    pub(super) fn withdraw_suspicions(&mut self, members: &[Address]) {
        self.pending.suspects.retain(|member| !members.contains(member));
    }

    fn take_over(&mut self) {
        if !self.is_coordinating {
            tracing::debug!("taking over as coordinator");
            self.is_coordinating = true;
            self.has_sent_view = false;
        }
    }

    /// Leavers and suspects do not count. A leaver never leads.
    fn would_lead(&self, cx: &Cx<'_>, group: &Group) -> bool {
        !group.is_leaving()
            && cx.view().is_some_and(|view| {
                let left = group.remaining(view, &self.pending.leavers, &self.pending.suspects);
                left.first() == Some(cx.local())
            })
    }

    /// Returns a view of the pending changes. Responds to leavers, and to joiners that are members.
    fn take_next_view(&mut self, cx: &mut Cx<'_>, group: &Group) -> Option<NextView> {
        let previous = cx.view().cloned()?;
        let own_digest = match cx.ask(&Query::Digest) {
            Some(Answer::Digest(digest)) => digest,
            _ => Digest::default(),
        };
        let mut pending = std::mem::take(&mut self.pending);
        pending.joiners.retain(|joiner| {
            let is_new = !previous.contains(joiner);
            if !is_new {
                join_again(cx, &previous, &own_digest, joiner);
            }
            is_new
        });
        if pending.len() == 0 {
            return None;
        }
        let Pending { joiners, leavers, suspects } = pending;
        let members = group.policy.next(previous.members(), &joiners, &leavers, &suspects);
        let creator = members.first().cloned()?;
        let id = ViewId { creator, id: group.next_view_number(previous.id().id) };
        let view = View::new(id, members);
        let join_rsp = (!joiners.is_empty()).then(|| {
            cx.control(&Control::SuspendStable(STABLE_SUSPENDED_MAX));
            #[cfg(feature = "injected-bugs")]
            if cx.has_bug(crate::InjectedBug::JoinDigestWrong) {
                let mut wrong = own_digest.clone();
                wrong.entries.iter_mut().for_each(|row| row.highest_delivered += 1);
                return join_rsp(&view, &wrong);
            }
            join_rsp(&view, &own_digest)
        });
        for leaver in &leavers {
            send_leave_rsp(cx, leaver);
        }
        let lost: Vec<Address> = suspects.into_iter().filter(|member| !leavers.contains(member)).collect();
        if !lost.is_empty() {
            cx.control(&Control::Lost(&lost));
        }
        Some(NextView { previous, view, joiners, join_rsp })
    }

    fn answer_joiners(&mut self, cx: &mut Cx<'_>, joiners: &[Address], join_rsp: Option<bytes::Bytes>) {
        let (Some(rsp), Some(acks)) = (join_rsp, &mut self.acks) else { return };
        acks.has_joiners = true;
        for joiner in joiners {
            let payload = Payload::Bytes(Some(rsp.clone()));
            send(cx, Some(joiner), header(GmsKind::JoinRsp), Flags::NONE, payload);
        }
    }

    const fn sends_delta(&self, config: &GmsConfig) -> bool {
        config.use_delta_views && self.has_sent_view
    }

    fn await_acks(&mut self, missing: Vec<Address>) {
        let has_joiners = self.acks.take().is_some_and(|acks| acks.has_joiners);
        self.acks = Some(Acks { missing, has_joiners });
    }

    fn send_view(&mut self, cx: &mut Cx<'_>, view: &View, form: &ViewForm, digest: Option<&Digest>) {
        let is_merge = view.is_merge();
        self.has_sent_view = !is_merge;
        if view.len() > 1 {
            let flags =
                Flags::NO_FC | Flags::NO_RELAY | if is_merge { Flags::NO_TOTAL_ORDER } else { Flags::NONE };
            let payload = wire::encode_view_and_digest(Some(form), digest);
            send(cx, None, header(GmsKind::View), flags, Payload::Bytes(Some(payload)));
        }
    }

    fn remove_missing(&mut self, member: &Address) {
        if let Some(acks) = &mut self.acks {
            acks.missing.retain(|missing| missing != member);
        }
    }

    fn give_up_missing(&mut self, cx: &Cx<'_>, config: &GmsConfig) {
        let Some(acks) = self.acks.as_mut().filter(|acks| !acks.missing.is_empty()) else { return };
        self.unconfirmed_views += 1;
        if config.log_collect_msgs {
            let missing = cx.shared().book.members(&acks.missing);
            tracing::warn!(?missing, "members have not confirmed the view");
        }
        acks.missing.clear();
    }

    fn take_complete(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(acks) = self.acks.take_if(|acks| acks.missing.is_empty()) else { return false };
        cx.disarm(ACKS);
        if acks.has_joiners {
            cx.control(&Control::ResumeStable);
        }
        true
    }
}

impl Gms {
    pub(super) fn join_req(&mut self, cx: &mut Cx<'_>, joiner: &Address) {
        let Self { group, coordinator, .. } = self;
        if !coordinator.is_coordinating || !group.is_staying() || cx.is_local(joiner) {
            return;
        }
        let joiners = &mut coordinator.pending.joiners;
        if joiners.len() >= PENDING_MAX {
            return cx.count_drop(DropReason::QueueFull, |book| format!("join of {}", book.member(joiner)));
        }
        Pending::add(joiners, joiner);
        self.request_view(cx);
    }

    pub(super) fn leave_req(&mut self, cx: &mut Cx<'_>, leaver: &Address) {
        if !self.group.is_server() || cx.is_local(leaver) {
            return;
        }
        let Some(view) = cx.view() else { return };
        if !view.contains(leaver) {
            // The member has left already and did not get the response.
            if self.coordinator.is_coordinating {
                send_leave_rsp(cx, leaver);
            }
            return;
        }
        Pending::add(&mut self.coordinator.pending.leavers, leaver);
        self.take_over_or_pass_on(cx);
    }

    pub(super) fn suspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        let Some(view) = cx.view().cloned() else { return };
        for member in members.iter().filter(|member| view.contains(member) && !cx.is_local(member)) {
            Pending::add(&mut self.coordinator.pending.suspects, member);
            self.coordinator.remove_missing(member);
        }
        self.acks_may_be_complete(cx);
        self.take_over_or_pass_on(cx);
    }

    fn take_over_or_pass_on(&mut self, cx: &mut Cx<'_>) {
        if self.coordinator.would_lead(cx, &self.group) {
            self.coordinator.take_over();
            self.request_view(cx);
        } else if self.group.is_leaving() {
            self.ask_to_leave(cx);
        }
    }

    /// The next view waits meanwhile.
    fn is_changing(&self) -> bool {
        self.coordinator.acks.is_some() || self.merging.is_running()
    }

    pub(super) fn request_view(&mut self, cx: &mut Cx<'_>) {
        if self.is_changing() || cx.is_armed(BUNDLE) || self.coordinator.pending.len() == 0 {
            return;
        }
        if self.group.config.view_bundling {
            cx.arm(BUNDLE, self.group.config.max_bundling_time);
        } else {
            self.make_view(cx);
        }
    }

    pub(super) fn make_view(&mut self, cx: &mut Cx<'_>) {
        let Self { group, coordinator, .. } = self;
        let leads = coordinator.is_coordinating && coordinator.would_lead(cx, group);
        if self.is_changing() || !leads {
            return;
        }
        let Some(next) = self.coordinator.take_next_view(cx, &self.group) else { return };
        let awaited = next.view.members().to_vec();
        self.announce(cx, &next.previous, next.view, None, awaited);
        self.coordinator.answer_joiners(cx, &next.joiners, next.join_rsp);
        self.acks_may_be_complete(cx);
    }

    /// The members of `awaited` but this one acknowledge the view.
    pub(super) fn announce(
        &mut self,
        cx: &mut Cx<'_>,
        previous: &View,
        next: View,
        digest: Option<&Digest>,
        mut awaited: Vec<Address>,
    ) {
        let sends_delta = self.coordinator.sends_delta(&self.group.config);
        #[cfg(feature = "injected-bugs")]
        let sends_delta = sends_delta || cx.has_bug(crate::InjectedBug::StaleDeltaView);
        let form = if sends_delta && !next.is_merge() {
            ViewForm::Delta(difference(previous, &next))
        } else {
            ViewForm::Full(next.clone())
        };
        awaited.retain(|member| !cx.is_local(member));
        self.coordinator.await_acks(awaited);
        self.install(cx, next.clone());
        self.coordinator.send_view(cx, &next, &form, digest);
        cx.arm(ACKS, self.group.config.view_ack_collection_timeout);
    }

    pub(super) fn acked(&mut self, cx: &mut Cx<'_>, member: &Address) {
        self.coordinator.remove_missing(member);
        self.acks_may_be_complete(cx);
    }

    pub(super) fn acks_late(&mut self, cx: &mut Cx<'_>) {
        self.coordinator.give_up_missing(cx, &self.group.config);
        self.acks_may_be_complete(cx);
    }

    pub(super) fn acks_may_be_complete(&mut self, cx: &mut Cx<'_>) {
        if self.coordinator.take_complete(cx) {
            self.request_view_as_coordinator(cx);
        }
    }

    pub(super) fn request_view_as_coordinator(&mut self, cx: &mut Cx<'_>) {
        if self.coordinator.is_coordinating && self.group.is_staying() {
            self.request_view(cx);
        }
    }
}

fn join_again(cx: &mut Cx<'_>, view: &View, own_digest: &Digest, joiner: &Address) {
    if own_digest.has_members(view.members()) {
        let rsp = JoinRsp { view: Some(view.clone()), digest: Some(own_digest.clone()), fail_reason: None };
        let payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
        send(cx, Some(joiner), header(GmsKind::JoinRsp), Flags::OOB, payload);
    }
}

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
