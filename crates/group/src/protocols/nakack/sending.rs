use super::{NakAck, is_numbered};
use crate::retransmission::requested_seqnos;
use crate::{
    Address, Cx, Flags, GmsHeader, GmsKind, HeaderBody, Message, MessageBatch, NakAckHeader, Protocol,
    ProtocolId, Transient,
};

/// Replaces a purged message, for which the requester's window would wait forever. The requester joined with an older
/// digest than the last purge, or is of another group without a merge. A VIEW_ACK is the smallest message that every
/// member accepts and no application sees.
fn filler(local: &Address) -> Message {
    let header = GmsHeader { kind: GmsKind::ViewAck, member: None, merge_id: None, merge_rejected: false };
    let mut message = Message::empty(None)
        .with_flags(Flags::NO_FC)
        .with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
    message.src = Some(local.clone());
    message
}

impl NakAck {
    pub(super) fn send_batch(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let is_fixed = self.is_fixed();
        let mut messages = std::mem::take(&mut batch.messages);
        messages.retain_mut(|message| {
            if !is_numbered(message) {
                return true;
            }
            if is_fixed && (!self.waiting.is_empty() || !self.finds_room(cx)) {
                self.waiting.take_from_batch(message);
                return false;
            }
            self.number(cx, message);
            true
        });
        batch.messages = messages;
    }

    fn finds_room(&mut self, cx: &mut Cx<'_>) -> bool {
        if !self.has_room() {
            self.purge_acked(cx);
        }
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.sent.len() < self.capacity()
    }

    fn number(&mut self, cx: &Cx<'_>, message: &mut Message) {
        let seqno = self.sent.highest_sent() + 1;
        message.src.get_or_insert_with(|| cx.local().clone());
        message.headers.put(self.id(), self.kind.header(NakAckHeader::Msg { seqno }));
        self.has_sent_since_tick = true;
        if !message.transient.has(Transient::DONT_LOOPBACK) {
            self.last_looped = seqno;
        }
        self.sent.push(message.clone());
    }

    pub(super) fn send_waiting(&mut self, cx: &mut Cx<'_>) {
        while self.has_room()
            && let Some(mut message) = self.waiting.pop()
        {
            self.number(cx, &mut message);
            cx.send(message);
        }
    }

    pub(super) fn resend(&mut self, cx: &mut Cx<'_>, request: &Message, sender: &Address) {
        self.xmit.requests_received += 1;
        let Some(requester) = request.src.clone() else { return };
        if !cx.is_local(sender) {
            return; // Only senders keep messages (discard_delivered_msgs).
        }
        let id = self.id();
        for seqno in requested_seqnos(request) {
            let mut message = match self.sent.get(seqno) {
                Some(kept) => kept.clone(),
                None if seqno <= self.sent.low() => filler(cx.local()),
                None => continue,
            };
            #[cfg(feature = "injected-bugs")]
            if cx.has_bug(crate::InjectedBug::RetransmitWrongSeqno)
                && let Some(next) = self.sent.get(seqno + 1)
            {
                message = next.clone();
                message.headers.put(id, self.kind.header(NakAckHeader::Msg { seqno }));
            }
            if self.config.use_mcast_xmit && message.headers.get(id).is_some() {
                message.transient |= Transient::DONT_LOOPBACK;
            } else {
                message.headers.put(id, self.kind.header(NakAckHeader::XmitRsp { seqno }));
                message.dest = Some(requester.clone());
            }
            self.xmit.resent += 1;
            cx.send(message);
        }
    }

    /// Otherwise the loss of the last message would go unnoticed.
    pub(super) fn announce_last(&mut self, cx: &mut Cx<'_>) {
        let seqno = self.sent.highest_sent();
        let has_sent = std::mem::take(&mut self.has_sent_since_tick);
        if !self.config.resend_last_seqno || has_sent || seqno == 0 || !self.is_server {
            return;
        }
        if self.announced.0 != seqno {
            self.announced = (seqno, 0);
        }
        // With acknowledgements, the sender knows whether all members have it, and repeats until they do.
        let is_open = self.is_fixed() && self.sent.len() > 0;
        if self.announced.1 >= self.config.resend_last_seqno_max_times && !is_open {
            return;
        }
        self.announced.1 += 1;
        let mut message = Message::empty(None)
            .with_flags(Flags::OOB | Flags::NO_FC)
            .with_header(self.id(), self.kind.header(NakAckHeader::HighestSeqno { seqno }));
        message.transient |= Transient::DONT_LOOPBACK;
        cx.send(message);
    }

    pub(super) fn acked(&mut self, cx: &mut Cx<'_>, member: &Address, seqno: u64) {
        let Some(acked) = self.acks.get_mut(member) else { return };
        *acked = (*acked).max(seqno.min(self.sent.highest_sent()));
        self.purge_acked(cx);
    }

    /// This member counts only while its application has messages to consume: those without loopback never reach it.
    pub(super) fn purge_acked(&mut self, cx: &mut Cx<'_>) {
        let local = cx.local();
        let waits = self.acks.get(local).is_some_and(|own| *own < self.last_looped);
        let counted = self.acks.iter().filter(|&(member, _)| waits || member != local);
        let slowest = counted.map(|(_, acked)| *acked).min().unwrap_or_else(|| self.sent.highest_sent());
        if self.sent.purge(slowest) {
            self.send_waiting(cx);
        }
    }
}
