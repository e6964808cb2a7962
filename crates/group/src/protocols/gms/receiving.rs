//! Handling of GMS messages and of views made by a coordinator.

use super::{Gms, Role};
use crate::wire::{self, ViewForm};
use crate::{
    Address, Control, Cx, DeltaView, Digest, DropReason, Flags, GmsHeader, GmsKind, Message, Payload, View,
};

impl Gms {
    pub(super) fn receive(&mut self, cx: &mut Cx<'_>, header: &GmsHeader, message: &Message) {
        let Some(src) = message.src.clone() else { return cx.discard(message, DropReason::Malformed) };
        cx.absorb(message);
        match header.kind {
            GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer => {
                self.join_req(cx, header.member.as_ref().unwrap_or(&src));
            }
            GmsKind::JoinRsp => self.join_rsp(cx, message, &src),
            GmsKind::LeaveReq => self.leave_req(cx, header.member.as_ref().unwrap_or(&src)),
            GmsKind::LeaveRsp => {
                if self.is_leaving() {
                    self.left(cx);
                }
            }
            GmsKind::View => self.view_message(cx, message, &src),
            GmsKind::ViewAck => self.acked(cx, &src),
            GmsKind::GetCurrentView => self.current_view_wanted(cx, message, &src),
            GmsKind::InstallDigest => {
                if let Some((_, Some(digest))) = Self::view_and_digest(cx, message)
                    && self.is_server()
                {
                    cx.control(&Control::MergeDigest(&digest));
                }
            }
            GmsKind::MergeReq => self.merge_req(cx, header, message, &src),
            GmsKind::MergeRsp => self.merge_rsp(cx, header, message, &src),
            GmsKind::InstallMergeView => self.install_merge_view(cx, header, message),
            GmsKind::CancelMerge => self.merge_cancelled(cx, header, &src),
            GmsKind::GetDigestReq => self.digest_req(cx, header, &src),
            GmsKind::GetDigestRsp => self.digest_rsp(cx, message, &src),
        }
    }

    /// Decodes the payload of VIEW, MERGE_RSP and similar messages. Counts invalid ones.
    pub(super) fn view_and_digest(
        cx: &mut Cx<'_>,
        message: &Message,
    ) -> Option<(Option<ViewForm>, Option<Digest>)> {
        let decoded = message.payload_bytes().map(wire::decode_view_and_digest);
        let Some(Ok(decoded)) = decoded else {
            cx.count_drop(DropReason::Malformed, |_| "view and digest".to_owned());
            return None;
        };
        Some(decoded)
    }

    pub(super) fn view_ack(cx: &mut Cx<'_>, to: &Address) {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::ViewAckNotSent) {
            return;
        }
        if !cx.is_local(to) {
            let flags = Flags::OOB | Flags::NO_FC;
            Self::send(cx, Some(to), Self::header(GmsKind::ViewAck), flags, Payload::Empty);
        }
    }

    fn view_message(&mut self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let Some((Some(form), digest)) = Self::view_and_digest(cx, message) else { return };
        if !self.is_server() {
            return;
        }
        let Some(own) = cx.view().cloned() else { return };
        let id = match &form {
            ViewForm::Full(view) => view.id(),
            ViewForm::Delta(delta) => &delta.id,
        };
        let is_old = id.id <= own.id().id;
        #[cfg(feature = "injected-bugs")]
        let is_old = is_old && !cx.has_bug(crate::InjectedBug::OldViewInstalled);
        if is_old {
            // An old view, as in a repeated response. Its sender still waits for the acknowledgement.
            return Self::view_ack(cx, src);
        }
        #[cfg(feature = "injected-bugs")]
        let form = match form {
            ViewForm::Delta(delta) if cx.has_bug(crate::InjectedBug::StaleDeltaView) => {
                ViewForm::Delta(DeltaView { reference: own.id().clone(), ..delta })
            }
            form => form,
        };
        let view = match form {
            ViewForm::Full(view) => view,
            ViewForm::Delta(delta) => match self.applied(&own, &delta) {
                Some(view) => view,
                None => {
                    let flags = Flags::OOB | Flags::NO_FC;
                    let header = Self::header(GmsKind::GetCurrentView);
                    return Self::send(cx, Some(src), header, flags, Payload::Empty);
                }
            },
        };
        if !view.contains(cx.local()) {
            if self.is_leaving() {
                return self.left(cx);
            }
            if self.config.log_view_warnings {
                tracing::warn!(
                    view = %view.display(&cx.shared().book),
                    "a view lacks this member and is not installed; a merge will unite the groups"
                );
            }
            return;
        }
        if !view.contains(src) && !own.contains(src) {
            return cx.count_drop(DropReason::NotMember, |book| format!("view from {}", book.member(src)));
        }
        if !view.contains(src) {
            Self::view_ack(cx, src);
        }
        self.install_view_of_other(cx, view.clone(), digest.as_ref());
        if view.contains(src) {
            Self::view_ack(cx, src);
        }
    }

    fn install_view_of_other(&mut self, cx: &mut Cx<'_>, view: View, digest: Option<&Digest>) {
        let is_merge = view.is_merge();
        if let Some(digest) = digest {
            cx.control(&Control::MergeDigest(digest));
        }
        self.install(cx, view);
        if is_merge && self.merge.is_some() {
            self.end_merge(cx);
        }
        if self.is_coordinating && matches!(self.role, Role::Member) {
            self.request_view(cx);
        }
    }

    fn applied(&self, own: &View, delta: &DeltaView) -> Option<View> {
        if *own.id() != delta.reference {
            return None;
        }
        let members = self.policy.next(own.members(), &delta.joined, &delta.left, &[]);
        Some(View::new(delta.id.clone(), members))
    }

    fn current_view_wanted(&self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let theirs = match message.payload_bytes().map(wire::decode_view_id_option) {
            Some(Ok(id)) => id,
            None => None,
            Some(Err(_)) => return cx.count_drop(DropReason::Malformed, |_| "view id".to_owned()),
        };
        let Some(view) = cx.view().filter(|_| self.is_server()).cloned() else { return };
        if theirs.is_some_and(|theirs| view.id().id <= theirs.id) {
            return;
        }
        let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(view)), None);
        let flags = Flags::OOB | Flags::NO_FC;
        Self::send(cx, Some(src), Self::header(GmsKind::View), flags, Payload::Bytes(Some(payload)));
    }
}
