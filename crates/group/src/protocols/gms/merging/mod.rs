//! Merging: groups that were formed separately or were partitioned become one.
//!
//! One of the coordinators leads. It requests from every group the members and their seqnos, and makes one
//! view of them. Every coordinator installs that view in its own group. During a merge no member makes other
//! views. A merge ends by itself after twice the merge timeout.

mod leader;

use std::time::Duration;

use leader::LedMerge;

use super::{Gms, MERGE_DIGESTS, MERGE_END, MERGE_RESPONSES};
use crate::wire::{self, ViewForm};
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Flags, GmsHeader, GmsKind, MergeId, Message, Payload,
    Query, Time, View, ViewId,
};

pub(super) struct Merge {
    id: MergeId,
    begun: Time,
    /// The state of the leader.
    leading: Option<LedMerge>,
    /// The state of a group's coordinator.
    collecting: Option<DigestCollection>,
    /// The member that requested participation: the leader, or this group's coordinator.
    requested_by: Address,
    /// The members of this group that take part through this member.
    group: Vec<Address>,
    /// Those of them included in this member's response. They get the merge view from this member and
    /// acknowledge it here.
    confirming: Vec<Address>,
}

struct DigestCollection {
    leader: Address,
    members: Vec<Address>,
    digest: Digest,
}

/// The maximum number of remembered merges, so that a late message does not restart one. Enough for all that
/// overlap within twice the timeout.
const MERGES_DONE_MAX: usize = 20;

impl Gms {
    /// Starts to take part in a merge. Returns false if another merge runs or this one is over.
    fn begin_merge(&mut self, cx: &mut Cx<'_>, id: &MergeId, requested_by: &Address) -> bool {
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
            None if self.merges_done.contains(id) => false,
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
                cx.control(&Control::SuspendStable(self.merge_limit()));
                cx.arm(MERGE_END, self.merge_limit());
                true
            }
        }
    }

    fn merge_limit(&self) -> Duration {
        self.config.merge_timeout.saturating_mul(2)
    }

    pub(super) fn end_merge(&mut self, cx: &mut Cx<'_>) {
        let Some(merge) = self.merge.take() else { return };
        self.remember_done(merge.id);
        for key in [MERGE_RESPONSES, MERGE_DIGESTS, MERGE_END] {
            cx.disarm(key);
        }
        cx.control(&Control::ResumeStable);
        if self.is_coordinating {
            self.request_view(cx);
        }
    }

    fn takes_part(&self, header: &GmsHeader) -> bool {
        self.merge.as_ref().is_some_and(|merge| Some(&merge.id) == header.merge_id.as_ref())
    }

    pub(super) fn merge_cancelled(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, src: &Address) {
        let is_theirs = self
            .merge
            .as_ref()
            .is_some_and(|merge| [&merge.requested_by, &merge.id.initiator].contains(&src));
        if is_theirs && self.takes_part(header) {
            self.release_group(cx, |_| true);
            self.end_merge(cx);
        } else if let Some(id) = header.merge_id.as_ref().filter(|id| id.initiator == *src) {
            // The request to take part may arrive later.
            self.remember_done(id.clone());
        }
    }

    fn remember_done(&mut self, id: MergeId) {
        self.merges_done.push_back(id);
        while self.merges_done.len() > MERGES_DONE_MAX {
            self.merges_done.pop_front();
        }
    }

    /// Cancels the merge for members of this group that get no merge view, because while waiting they refuse
    /// other merges. Members that the leader requested itself are not cancelled here.
    fn release_group(&self, cx: &mut Cx<'_>, is_released: impl Fn(&Address) -> bool) {
        let Some(merge) = &self.merge else { return };
        let is_asked =
            |member: &Address| merge.leading.as_ref().is_some_and(|leading| leading.has_asked(member));
        let released = merge.group.iter().filter(|member| is_released(member) && !is_asked(member));
        Self::cancel_merge(cx, released, &merge.id);
    }

    pub(super) fn merge_req(
        &mut self,
        cx: &mut Cx<'_>,
        header: &GmsHeader,
        message: &Message,
        src: &Address,
    ) {
        let members = match message.payload_bytes().map(wire::decode_address_list) {
            Some(Ok(members)) => members,
            None => Vec::new(),
            Some(Err(_)) => return cx.count_drop(DropReason::Malformed, |_| "members to merge".to_owned()),
        };
        if let Some(id) = &header.merge_id {
            self.join_merge(cx, id, src, &members);
        }
    }

    /// Handles a leader's request for this group.
    fn join_merge(&mut self, cx: &mut Cx<'_>, id: &MergeId, leader: &Address, asked: &[Address]) {
        if !self.is_server() || self.is_leaving() {
            return;
        }
        let local = cx.local().clone();
        if !self.begin_merge(cx, id, leader) {
            // The refusal saves the leader from waiting.
            if *leader != local {
                let mut header = Self::header(GmsKind::MergeRsp);
                header.merge_id = Some(id.clone());
                header.merge_rejected = true;
                Self::send(cx, Some(leader), header, Flags::OOB, Payload::Empty);
            }
            return;
        }
        let Some(view) = cx.view() else { return };
        let members: Vec<Address> = view
            .members()
            .iter()
            .filter(|member| asked.contains(member) || **member == local)
            .cloned()
            .collect();
        let Some(Answer::Digest(digest)) = cx.ask(&Query::DigestOf(&local)) else { return };
        let is_alone = members.len() == 1;
        if let Some(merge) = &mut self.merge {
            merge.group = members.iter().filter(|member| **member != local).cloned().collect();
            merge.collecting = Some(DigestCollection { leader: leader.clone(), members, digest });
        }
        if is_alone {
            return self.answer_merge(cx);
        }
        let mut header = Self::header(GmsKind::GetDigestReq);
        header.merge_id = Some(id.clone());
        Self::send(cx, None, header, Flags::OOB, Payload::Empty);
        cx.arm(MERGE_DIGESTS, self.config.merge_timeout / 2);
    }

    pub(super) fn digest_req(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, src: &Address) {
        if !self.is_server() || !cx.view().is_some_and(|view| view.contains(src)) {
            return;
        }
        if let Some(id) = &header.merge_id
            && !self.begin_merge(cx, id, src)
        {
            return;
        }
        let local = cx.local().clone();
        if let Some(Answer::Digest(digest)) = cx.ask(&Query::DigestOf(&local)) {
            let payload = wire::encode_view_and_digest(None, Some(&digest));
            let flags = Flags::OOB | Flags::NO_FC;
            Self::send(
                cx,
                Some(src),
                Self::header(GmsKind::GetDigestRsp),
                flags,
                Payload::Bytes(Some(payload)),
            );
        }
    }

    pub(super) fn digest_rsp(&mut self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let Some((_, Some(digest))) = Self::view_and_digest(cx, message) else { return };
        let Some(collecting) = self.merge.as_mut().and_then(|merge| merge.collecting.as_mut()) else {
            return;
        };
        if !collecting.members.contains(src) {
            return;
        }
        if let Some(row) = digest.get(src) {
            collecting.digest.set(src.clone(), row.highest_delivered, row.highest_received);
        }
        if collecting.digest.entries.len() == collecting.members.len() {
            self.answer_merge(cx);
        }
    }

    /// Sends the leader the digests of the members that have responded, once all have or time is up.
    pub(super) fn answer_merge(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(MERGE_DIGESTS);
        let Some(view) = cx.view().cloned() else { return };
        let Some(merge) = &mut self.merge else { return };
        let Some(collected) = merge.collecting.take() else { return };
        let mut digest = Digest::default();
        for member in &collected.members {
            if let Some(row) = collected.digest.get(member) {
                digest.set(member.clone(), row.highest_delivered, row.highest_received);
            }
        }
        let members: Vec<Address> = digest.entries.iter().map(|row| row.member.clone()).collect();
        merge.confirming.clone_from(&members);
        let answer = View::new(view.id().clone(), members);
        let id = merge.id.clone();
        self.release_group(cx, |member| digest.get(member).is_none());
        if cx.is_local(&collected.leader) {
            let local = cx.local().clone();
            return self.group_answered(cx, &local, Some((answer, digest)));
        }
        let mut header = Self::header(GmsKind::MergeRsp);
        header.merge_id = Some(id);
        let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(answer)), Some(&digest));
        Self::send(cx, Some(&collected.leader), header, Flags::OOB, Payload::Bytes(Some(payload)));
    }

    pub(super) fn install_merge_view(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, message: &Message) {
        let Some((Some(ViewForm::Full(view)), digest)) = Self::view_and_digest(cx, message) else { return };
        if self.takes_part(header) {
            self.install_merge_view_in_group(cx, view, digest.as_ref());
        } else {
            self.handle_abandoned_merge_view(cx, &view);
        }
    }

    /// Handles the view of a merge that this member has abandoned. If the view is in this member's name, its
    /// number is used: two views with one id would look equal and would not be merged.
    fn handle_abandoned_merge_view(&mut self, cx: &mut Cx<'_>, view: &View) {
        if !self.is_server() || view.id().creator != *cx.local() {
            return;
        }
        self.highest_view = self.highest_view.max(view.id().id);
        let Some(own) = cx.view().filter(|own| own.id() == view.id()).cloned() else { return };
        let differs = own.members() != view.members();
        if differs && self.is_coordinating && !self.is_leaving() && self.merge.is_none() {
            let id = ViewId { creator: cx.local().clone(), id: self.highest_view + 1 };
            let members = own.members().to_vec();
            self.announce(cx, &own, View::new(id, members.clone()), None, members);
            self.acks_may_be_complete(cx);
        }
    }

    fn install_merge_view_in_group(&mut self, cx: &mut Cx<'_>, view: View, digest: Option<&Digest>) {
        let Some(previous) = cx.view().cloned() else { return };
        if !view.contains(cx.local()) || view.id().id <= previous.id().id {
            return self.end_merge(cx);
        }
        if let Some(digest) = digest {
            cx.control(&Control::MergeDigest(digest));
        }
        // Members of the last view that responded to another member get the merge view there, and acknowledge
        // it there.
        let confirming = self.merge.iter().flat_map(|merge| &merge.confirming);
        let awaited = confirming.filter(|member| view.contains(member)).cloned().collect();
        // The digest request reached all members of the last view, also those of another group. A member
        // outside the merge view learns the end only from here; otherwise it would refuse other merges until
        // its timeout.
        if let Some(merge) = &self.merge {
            let excluded = previous.members().iter().filter(|member| !view.contains(member));
            Self::cancel_merge(cx, excluded, &merge.id);
        }
        self.announce(cx, &previous, view, digest, awaited);
        self.end_merge(cx);
        self.acks_may_be_complete(cx);
    }
}
