//! Merging: groups that formed or drifted apart become one (facts 12.7).
//!
//! One of the coordinators leads. It asks every group for its members and how far their messages have got, makes one
//! view of them, and every coordinator brings that view to its own group. While a merge lasts, nobody makes other
//! views; it ends by itself after twice the merge timeout.

mod leader;

use std::time::Duration;

use leader::Leading;

use super::{Gms, MERGE_DIGESTS, MERGE_END, MERGE_RESPONSES};
use crate::wire::{self, ViewForm};
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Flags, GmsHeader, GmsKind, MergeId, Message, Payload,
    Query, Time, View, ViewId,
};

/// A merge in which we take part.
pub(super) struct Merge {
    id: MergeId,
    begun: Time,
    /// What the leader collects.
    leading: Option<Leading>,
    /// What the coordinator of a group collects.
    collecting: Option<Collecting>,
    /// Who asked us: the leader, or our coordinator.
    drawn_by: Address,
    /// The members of our group that we have drawn into it.
    group: Vec<Address>,
    /// Those of them whom we have answered for: they get the merged view from us, and confirm it to us.
    confirming: Vec<Address>,
}

/// A group's digests on the way to the merge leader.
struct Collecting {
    leader: Address,
    members: Vec<Address>,
    digest: Digest,
}

/// Merges to remember, so that a late message does not start one again. As many as can overlap in twice a timeout.
const MERGES_DONE_MAX: usize = 20;

impl Gms {
    /// Takes part in a merge. Returns false if another runs, or this one is over.
    fn begin_merge(&mut self, cx: &mut Cx<'_>, id: &MergeId, drawn_by: &Address) -> bool {
        match &mut self.merge {
            Some(merge) if merge.id == *id => {
                // Asked by the leader itself, we are a group of our own, whatever our coordinator makes of it.
                if *drawn_by == id.initiator {
                    drawn_by.clone_into(&mut merge.drawn_by);
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
                    drawn_by: drawn_by.clone(),
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
        let is_theirs =
            self.merge.as_ref().is_some_and(|merge| [&merge.drawn_by, &merge.id.initiator].contains(&src));
        if is_theirs && self.takes_part(header) {
            self.release_group(cx, |_| true);
            self.end_merge(cx);
        } else if let Some(id) = header.merge_id.as_ref().filter(|id| id.initiator == *src) {
            // The request that would draw us into it may come later.
            self.remember_done(id.clone());
        }
    }

    fn remember_done(&mut self, id: MergeId) {
        self.merges_done.push_back(id);
        while self.merges_done.len() > MERGES_DONE_MAX {
            self.merges_done.pop_front();
        }
    }

    /// Members of our group that no merged view will reach are told that the merge is over for them: as long as they
    /// wait, they take part in no other. Those that the leader has asked itself are not ours to release.
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

    /// A leader asks for our group.
    fn join_merge(&mut self, cx: &mut Cx<'_>, id: &MergeId, leader: &Address, asked: &[Address]) {
        if !self.is_server() || self.is_leaving() {
            return;
        }
        let local = cx.local().clone();
        if !self.begin_merge(cx, id, leader) {
            // The leader need not wait for us.
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
            merge.collecting = Some(Collecting { leader: leader.clone(), members, digest });
        }
        if is_alone {
            return self.answer_merge(cx);
        }
        let mut header = Self::header(GmsKind::GetDigestReq);
        header.merge_id = Some(id.clone());
        Self::send(cx, None, header, Flags::OOB, Payload::Empty);
        cx.arm(MERGE_DIGESTS, self.config.merge_timeout / 2);
    }

    /// Our coordinator collects digests for a merge.
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

    /// All members of our group have answered, or time is up: the leader hears of those that have.
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
            self.bring_merge_view(cx, view, digest.as_ref());
        } else {
            self.merged_without_us(cx, &view);
        }
    }

    /// A merge that is over for us has made a view all the same, perhaps in our name. Others have it, so its number is taken:
    /// views of one id look the same to all, and would not be merged.
    fn merged_without_us(&mut self, cx: &mut Cx<'_>, view: &View) {
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

    /// The coordinator of a group brings the merged view to it.
    fn bring_merge_view(&mut self, cx: &mut Cx<'_>, view: View, digest: Option<&Digest>) {
        let Some(previous) = cx.view().cloned() else { return };
        if !view.contains(cx.local()) || view.id().id <= previous.id().id {
            return self.end_merge(cx);
        }
        if let Some(digest) = digest {
            cx.control(&Control::MergeDigest(digest));
        }
        // Members of our last view who have answered elsewhere hear of the merged one there, and confirm it there.
        let confirming = self.merge.iter().flat_map(|merge| &merge.confirming);
        let awaited = confirming.filter(|member| view.contains(member)).cloned().collect();
        // Our request for digests reaches all of our last view, also those whose group is another one. Who is not in the
        // merged view hears of its end from nobody else, and would refuse other merges until its own time is up.
        if let Some(merge) = &self.merge {
            let drawn = previous.members().iter().filter(|member| !view.contains(member));
            Self::cancel_merge(cx, drawn, &merge.id);
        }
        self.announce(cx, &previous, view, digest, awaited);
        self.end_merge(cx);
        self.acks_may_be_complete(cx);
    }
}
