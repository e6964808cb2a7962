//! Merging: groups formed separately or partitioned become one.
//!
//! The leader, one of the coordinators, requests members and seqnos from every group and makes one view. Every
//! coordinator installs it in its group. Meanwhile no member makes other views. A merge ends by itself after twice
//! the merge timeout.

mod leader;

use std::collections::VecDeque;

use leader::LedMerge;

use super::group::Group;
use super::messages::{merge_header, send, send_cancel_merge, view_and_digest};
use super::{Gms, MERGE_DIGESTS, MERGE_END, MERGE_RESPONSES, messages};
use crate::wire::{self, ViewForm};
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Flags, GmsHeader, GmsKind, MergeId, Message, Payload,
    Query, Time, View, ViewId,
};

#[derive(Default)]
pub(super) struct Merging {
    merge: Option<Merge>,
    /// Their late messages must not restart them.
    done: VecDeque<MergeId>,
    last_led: i32,
}

pub(super) enum MergeStep {
    Wait,
    End,
    Install(View, Option<Digest>),
}

struct Merge {
    id: MergeId,
    begun: Time,
    leading: Option<LedMerge>,
    collecting: Option<DigestCollection>,
    /// The leader, or this group's coordinator.
    requested_by: Address,
    group: Vec<Address>,
    /// They get the merge view from this member and acknowledge it here.
    confirming: Vec<Address>,
}

struct DigestCollection {
    leader: Address,
    members: Vec<Address>,
    digest: Digest,
}

/// Enough for all that overlap within twice the timeout.
const MERGES_DONE_MAX: usize = 20;

impl Merging {
    pub(super) const fn is_running(&self) -> bool {
        self.merge.is_some()
    }

    pub(super) fn forget_group(&mut self) {
        self.merge = None;
        self.done.clear();
    }

    /// Returns false if another merge runs or this one is over.
    fn begin(&mut self, cx: &mut Cx<'_>, group: &Group, id: &MergeId, requested_by: &Address) -> bool {
        match &mut self.merge {
            Some(merge) if merge.id == *id => {
                // After a request from the leader itself, this member is a group of its own, regardless of
                // its coordinator.
                if *requested_by == id.initiator {
                    requested_by.clone_into(&mut merge.requested_by);
                }
                true
            }
            Some(_) => false,
            None if self.done.contains(id) => false,
            None => {
                self.merge = Some(Merge {
                    id: id.clone(),
                    begun: cx.now(),
                    leading: None,
                    collecting: None,
                    requested_by: requested_by.clone(),
                    group: Vec::new(),
                    confirming: Vec::new(),
                });
                cx.control(&Control::SuspendStable(group.merge_limit()));
                cx.arm(MERGE_END, group.merge_limit());
                true
            }
        }
    }

    fn end(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(merge) = self.merge.take() else { return false };
        self.remember_done(merge.id);
        for key in [MERGE_RESPONSES, MERGE_DIGESTS, MERGE_END] {
            cx.disarm(key);
        }
        cx.control(&Control::ResumeStable);
        true
    }

    fn takes_part(&self, header: &GmsHeader) -> bool {
        self.merge.as_ref().is_some_and(|merge| Some(&merge.id) == header.merge_id.as_ref())
    }

    fn remember_done(&mut self, id: MergeId) {
        self.done.push_back(id);
        while self.done.len() > MERGES_DONE_MAX {
            self.done.pop_front();
        }
    }

    /// While waiting, members refuse other merges. Members that the leader requested itself are not cancelled here.
    fn release_group(&self, cx: &mut Cx<'_>, is_released: impl Fn(&Address) -> bool) {
        let Some(merge) = &self.merge else { return };
        let is_asked =
            |member: &Address| merge.leading.as_ref().is_some_and(|leading| leading.has_asked(member));
        let released = merge.group.iter().filter(|member| is_released(member) && !is_asked(member));
        send_cancel_merge(cx, released, &merge.id);
    }

    pub(super) fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        header: &GmsHeader,
        message: &Message,
        src: &Address,
    ) -> MergeStep {
        match header.kind {
            GmsKind::MergeReq => self.merge_req(cx, group, header, message, src),
            GmsKind::MergeRsp => self.merge_rsp(cx, group, header, message, src),
            GmsKind::CancelMerge => self.cancelled(cx, header, src),
            GmsKind::GetDigestRsp => self.digest_rsp(cx, group, message, src),
            _ => MergeStep::Wait,
        }
    }

    fn cancelled(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, src: &Address) -> MergeStep {
        let is_theirs = self
            .merge
            .as_ref()
            .is_some_and(|merge| [&merge.requested_by, &merge.id.initiator].contains(&src));
        if is_theirs && self.takes_part(header) {
            self.release_group(cx, |_| true);
            return MergeStep::End;
        }
        if let Some(id) = header.merge_id.as_ref().filter(|id| id.initiator == *src) {
            // The request to take part may arrive later.
            self.remember_done(id.clone());
        }
        MergeStep::Wait
    }

    fn merge_req(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        header: &GmsHeader,
        message: &Message,
        src: &Address,
    ) -> MergeStep {
        let members = match message.payload_bytes().map(wire::decode_address_list) {
            Some(Ok(members)) => members,
            None => Vec::new(),
            Some(Err(_)) => {
                cx.count_drop(DropReason::Malformed, |_| "members to merge".to_owned());
                return MergeStep::Wait;
            }
        };
        let Some(id) = &header.merge_id else { return MergeStep::Wait };
        self.join(cx, group, id, src, &members)
    }

    fn join(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        id: &MergeId,
        leader: &Address,
        asked: &[Address],
    ) -> MergeStep {
        if !group.is_staying() {
            return MergeStep::Wait;
        }
        let local = cx.local().clone();
        if !self.begin(cx, group, id, leader) {
            // The refusal saves the leader from waiting.
            if *leader != local {
                let header = GmsHeader { merge_rejected: true, ..merge_header(GmsKind::MergeRsp, id) };
                send(cx, Some(leader), header, Flags::OOB, Payload::Empty);
            }
            return MergeStep::Wait;
        }
        let Some(view) = cx.view() else { return MergeStep::Wait };
        let members: Vec<Address> = view
            .members()
            .iter()
            .filter(|member| asked.contains(member) || **member == local)
            .cloned()
            .collect();
        let Some(Answer::Digest(digest)) = cx.ask(&Query::DigestOf(&local)) else { return MergeStep::Wait };
        let is_alone = members.len() == 1;
        if let Some(merge) = &mut self.merge {
            merge.group = members.iter().filter(|member| **member != local).cloned().collect();
            merge.collecting = Some(DigestCollection { leader: leader.clone(), members, digest });
        }
        if is_alone {
            return self.answer(cx, group);
        }
        send(cx, None, merge_header(GmsKind::GetDigestReq, id), Flags::OOB, Payload::Empty);
        cx.arm(MERGE_DIGESTS, group.config.merge_timeout / 2);
        MergeStep::Wait
    }

    pub(super) fn digest_req(&mut self, cx: &mut Cx<'_>, group: &Group, header: &GmsHeader, src: &Address) {
        if !group.is_server() || !cx.view().is_some_and(|view| view.contains(src)) {
            return;
        }
        if let Some(id) = &header.merge_id
            && !self.begin(cx, group, id, src)
        {
            return;
        }
        let local = cx.local().clone();
        if let Some(Answer::Digest(digest)) = cx.ask(&Query::DigestOf(&local)) {
            let payload = Payload::Bytes(Some(wire::encode_view_and_digest(None, Some(&digest))));
            let flags = Flags::OOB | Flags::NO_FC;
            send(cx, Some(src), messages::header(GmsKind::GetDigestRsp), flags, payload);
        }
    }

    fn digest_rsp(&mut self, cx: &mut Cx<'_>, group: &Group, message: &Message, src: &Address) -> MergeStep {
        let Some((_, Some(digest))) = view_and_digest(cx, message) else { return MergeStep::Wait };
        let Some(collecting) = self.merge.as_mut().and_then(|merge| merge.collecting.as_mut()) else {
            return MergeStep::Wait;
        };
        if !collecting.members.contains(src) {
            return MergeStep::Wait;
        }
        if let Some(row) = digest.get(src) {
            collecting.digest.set(src.clone(), row.highest_delivered, row.highest_received);
        }
        if collecting.digest.entries.len() != collecting.members.len() {
            return MergeStep::Wait;
        }
        self.answer(cx, group)
    }

    /// Waits until all have responded or time is up.
    pub(super) fn answer(&mut self, cx: &mut Cx<'_>, group: &Group) -> MergeStep {
        cx.disarm(MERGE_DIGESTS);
        let Some(view) = cx.view().cloned() else { return MergeStep::Wait };
        let Some(merge) = &mut self.merge else { return MergeStep::Wait };
        let Some(collected) = merge.collecting.take() else { return MergeStep::Wait };
        let mut digest = Digest::default();
        for member in &collected.members {
            if let Some(row) = collected.digest.get(member) {
                digest.set(member.clone(), row.highest_delivered, row.highest_received);
            }
        }
        let members: Vec<Address> = digest.entries.iter().map(|row| row.member.clone()).collect();
        merge.confirming.clone_from(&members);
        let answer = View::new(view.id().clone(), members);
        let header = merge_header(GmsKind::MergeRsp, &merge.id);
        self.release_group(cx, |member| digest.get(member).is_none());
        if cx.is_local(&collected.leader) {
            let local = cx.local().clone();
            return self.group_answered(cx, group, &local, Some((answer, digest)));
        }
        let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(answer)), Some(&digest));
        send(cx, Some(&collected.leader), header, Flags::OOB, Payload::Bytes(Some(payload)));
        MergeStep::Wait
    }
}

impl Gms {
    pub(super) fn take_merge_step(&mut self, cx: &mut Cx<'_>, step: MergeStep) {
        match step {
            MergeStep::Wait => {}
            MergeStep::End => {
                if self.merging.end(cx) && self.coordinator.is_coordinating {
                    self.request_view(cx);
                }
            }
            MergeStep::Install(view, digest) => {
                self.install_merge_view_in_group(cx, view, digest.as_ref());
            }
        }
    }

    pub(super) fn install_merge_view(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, message: &Message) {
        let Some((Some(ViewForm::Full(view)), digest)) = view_and_digest(cx, message) else { return };
        if self.merging.takes_part(header) {
            self.install_merge_view_in_group(cx, view, digest.as_ref());
        } else {
            self.handle_abandoned_merge_view(cx, &view);
        }
    }

    /// The view uses up a number of this member: two views with one id would never be merged.
    fn handle_abandoned_merge_view(&mut self, cx: &mut Cx<'_>, view: &View) {
        if !self.group.is_server() || view.id().creator != *cx.local() {
            return;
        }
        self.group.note_view_number(view.id().id);
        let Some(own) = cx.view().filter(|own| own.id() == view.id()).cloned() else { return };
        let differs = own.members() != view.members();
        let leads = self.coordinator.is_coordinating && self.group.is_staying();
        if differs && leads && !self.merging.is_running() {
            let number = self.group.next_view_number(own.id().id);
            let id = ViewId { creator: cx.local().clone(), id: number };
            let members = own.members().to_vec();
            self.announce(cx, &own, View::new(id, members.clone()), None, members);
            self.acks_may_be_complete(cx);
        }
    }

    fn install_merge_view_in_group(&mut self, cx: &mut Cx<'_>, view: View, digest: Option<&Digest>) {
        let Some(previous) = cx.view().cloned() else { return };
        if !view.contains(cx.local()) || view.id().id <= previous.id().id {
            return self.take_merge_step(cx, MergeStep::End);
        }
        if let Some(digest) = digest {
            cx.control(&Control::MergeDigest(digest));
        }
        // Members of the last view that responded to another member get the merge view there, and acknowledge
        // it there.
        let confirming = self.merging.merge.iter().flat_map(|merge| &merge.confirming);
        let awaited = confirming.filter(|member| view.contains(member)).cloned().collect();
        // The digest request reached all members of the last view, also those of another group. A member
        // outside the merge view learns the end only from here; otherwise it would refuse other merges until
        // its timeout.
        if let Some(merge) = &self.merging.merge {
            let excluded = previous.members().iter().filter(|member| !view.contains(member));
            send_cancel_merge(cx, excluded, &merge.id);
        }
        self.announce(cx, &previous, view, digest, awaited);
        self.take_merge_step(cx, MergeStep::End);
        self.acks_may_be_complete(cx);
    }
}
