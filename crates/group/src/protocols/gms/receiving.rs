use super::Gms;
use super::merging::MergeStep;
use super::messages::{header, send, send_view_ack, view_and_digest};
use crate::wire::{self, ViewForm};
use crate::{Address, Control, Cx, Digest, DropReason, Flags, GmsHeader, GmsKind, Message, Payload, View};

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
                if self.group.is_leaving() {
                    self.left(cx);
                }
            }
            GmsKind::View => self.view_message(cx, message, &src),
            GmsKind::ViewAck => self.acked(cx, &src),
            GmsKind::GetCurrentView => self.current_view_wanted(cx, message, &src),
            GmsKind::InstallDigest => {
                if let Some((_, Some(digest))) = view_and_digest(cx, message)
                    && self.group.is_server()
                {
                    cx.control(&Control::MergeDigest(&digest));
                }
            }
            GmsKind::InstallMergeView => self.install_merge_view(cx, header, message),
            GmsKind::GetDigestReq => self.merging.digest_req(cx, &self.group, header, &src),
            GmsKind::MergeReq | GmsKind::MergeRsp | GmsKind::CancelMerge | GmsKind::GetDigestRsp => {
                let step = self.merging.receive(cx, &self.group, header, message, &src);
                self.take_merge_step(cx, step);
            }
        }
    }

    fn view_message(&mut self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let Some((Some(form), digest)) = view_and_digest(cx, message) else { return };
        if !self.group.is_server() {
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
            return send_view_ack(cx, src);
        }
        #[cfg(feature = "injected-bugs")]
        let form = match form {
            ViewForm::Delta(delta) if cx.has_bug(crate::InjectedBug::StaleDeltaView) => {
                ViewForm::Delta(crate::DeltaView { reference: own.id().clone(), ..delta })
            }
            form => form,
        };
        let view = match form {
            ViewForm::Full(view) => view,
            ViewForm::Delta(delta) => match self.group.apply(&own, &delta) {
                Some(view) => view,
                None => {
                    let flags = Flags::OOB | Flags::NO_FC;
                    return send(cx, Some(src), header(GmsKind::GetCurrentView), flags, Payload::Empty);
                }
            },
        };
        if !view.contains(cx.local()) {
            if self.group.is_leaving() {
                return self.left(cx);
            }
            if self.group.config.log_view_warnings {
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
            send_view_ack(cx, src);
        }
        self.install_view_of_other(cx, view.clone(), digest.as_ref());
        if view.contains(src) {
            send_view_ack(cx, src);
        }
    }

    fn install_view_of_other(&mut self, cx: &mut Cx<'_>, view: View, digest: Option<&Digest>) {
        let is_merge = view.is_merge();
        if let Some(digest) = digest {
            cx.control(&Control::MergeDigest(digest));
        }
        self.install(cx, view);
        if is_merge {
            self.take_merge_step(cx, MergeStep::End);
        }
        self.request_view_as_coordinator(cx);
    }

    fn current_view_wanted(&self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let theirs = match message.payload_bytes().map(wire::decode_view_id_option) {
            Some(Ok(id)) => id,
            None => None,
            Some(Err(_)) => return cx.count_drop(DropReason::Malformed, |_| "view id".to_owned()),
        };
        let Some(view) = cx.view().filter(|_| self.group.is_server()).cloned() else { return };
        if theirs.is_some_and(|theirs| view.id().id <= theirs.id) {
            return;
        }
        let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(view)), None);
        let flags = Flags::OOB | Flags::NO_FC;
        send(cx, Some(src), header(GmsKind::View), flags, Payload::Bytes(Some(payload)));
    }
}
