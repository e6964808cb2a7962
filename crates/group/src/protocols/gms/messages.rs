use crate::wire::{self, ViewForm};
use crate::{
    Address, Cx, Digest, DropReason, Flags, GmsHeader, GmsKind, HeaderBody, MergeId, Message, Payload,
    ProtocolId, Transient,
};

pub(super) fn header(kind: GmsKind) -> GmsHeader {
    GmsHeader { kind, member: None, merge_id: None, merge_rejected: false }
}

pub(super) fn merge_header(kind: GmsKind, id: &MergeId) -> GmsHeader {
    GmsHeader { merge_id: Some(id.clone()), ..header(kind) }
}

pub(super) fn send(
    cx: &mut Cx<'_>,
    dest: Option<&Address>,
    header: GmsHeader,
    flags: Flags,
    payload: Payload,
) {
    let mut message = Message::new(dest.cloned(), payload)
        .with_flags(flags)
        .with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
    if message.is_multicast() {
        message.transient |= Transient::DONT_LOOPBACK;
    }
    message.src = Some(cx.local().clone());
    cx.send(message);
}

pub(super) fn send_view_ack(cx: &mut Cx<'_>, to: &Address) {
    #[cfg(feature = "injected-bugs")]
    if cx.has_bug(crate::InjectedBug::ViewAckNotSent) {
        return;
    }
    if !cx.is_local(to) {
        send(cx, Some(to), header(GmsKind::ViewAck), Flags::OOB | Flags::NO_FC, Payload::Empty);
    }
}

pub(super) fn send_leave_req(cx: &mut Cx<'_>, to: &Address, leaver: &Address) {
    let header = GmsHeader { member: Some(leaver.clone()), ..header(GmsKind::LeaveReq) };
    send(cx, Some(to), header, Flags::OOB, Payload::Empty);
}

pub(super) fn send_leave_rsp(cx: &mut Cx<'_>, leaver: &Address) {
    let flags = Flags::OOB | Flags::NO_RELIABILITY;
    send(cx, Some(leaver), header(GmsKind::LeaveRsp), flags, Payload::Empty);
}

pub(super) fn send_cancel_merge<'m>(
    cx: &mut Cx<'_>,
    members: impl Iterator<Item = &'m Address>,
    id: &MergeId,
) {
    for member in members {
        send(cx, Some(member), merge_header(GmsKind::CancelMerge, id), Flags::NONE, Payload::Empty);
    }
}

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
