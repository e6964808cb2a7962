use super::{NakAck, Peer, nakack_of, seqno_of};
use crate::consumption::due_acks;
use crate::retransmission::{count_refused, gaps_of, request_soon, xmit_request};
use crate::window::Gaps;
#[cfg(feature = "injected-bugs")]
use crate::window::Insertion;
use crate::{
    Address, Cx, DropReason, Flags, Message, MessageBatch, NakAckHeader, Protocol, SeqnoList, Transient,
};

impl NakAck {
    pub(super) fn receive_batch(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        let is_own = batch.src().is_some_and(|src| cx.is_local(src));
        let in_turn = if is_own { self.pass_own(cx, batch) } else { self.pass_in_turn(batch) };
        if in_turn == batch.len() {
            return;
        }
        let (is_multicast, is_oob) = (batch.is_multicast(), batch.is_oob());
        let mut ready = std::mem::take(&mut batch.messages);
        for mut message in ready.split_off(in_turn) {
            let Some(header) = message.headers.take(id).and_then(nakack_of) else {
                ready.push(message);
                continue;
            };
            let Some(src) = message.src.clone() else {
                cx.discard(&message, DropReason::Malformed);
                continue;
            };
            match header {
                NakAckHeader::Msg { seqno } if message.transient.has(Transient::LOOPED_BACK) => {
                    self.loop_back(cx, seqno, &mut message);
                    ready.push(message);
                }
                NakAckHeader::Msg { seqno } => self.receive(cx, &src, seqno, message, &mut ready),
                NakAckHeader::XmitRsp { seqno } => {
                    message.dest = None;
                    self.receive(cx, &src, seqno, message, &mut ready);
                }
                NakAckHeader::XmitReq { sender } => self.resend(cx, &message, &sender),
                NakAckHeader::HighestSeqno { seqno } => self.highest_seqno(cx, &src, seqno),
                NakAckHeader::Ack { seqno } => self.acked(cx, &src, seqno),
            }
        }
        cx.refill(batch, ready, is_multicast, is_oob);
    }

    /// Most messages are in turn, and need not move.
    fn pass_in_turn(&mut self, batch: &mut MessageBatch) -> usize {
        let (id, is_fixed) = (self.id(), self.is_fixed());
        let src = batch.src().filter(|_| self.is_server);
        let Some(peer) = src.and_then(|src| self.peers.get_mut(src)) else { return 0 };
        let mut passed = 0;
        for message in &mut batch.messages {
            let seqno = message.headers.get(id).and_then(seqno_of);
            if !seqno.is_some_and(|seqno| peer.window.pass(seqno)) {
                break;
            }
            message.headers.take(id);
            if let Some(seqno) = seqno.filter(|_| is_fixed) {
                peer.acks.consumption.expect(seqno, message);
            }
            passed += 1;
        }
        self.delivered += passed as u64;
        passed
    }

    fn pass_own(&mut self, cx: &Cx<'_>, batch: &mut MessageBatch) -> usize {
        let id = self.id();
        let mut passed = 0;
        for message in &mut batch.messages {
            let is_looped = message.transient.has(Transient::LOOPED_BACK);
            let Some(seqno) = message.headers.get(id).and_then(seqno_of).filter(|_| is_looped) else { break };
            message.headers.take(id);
            self.loop_back(cx, seqno, message);
            passed += 1;
        }
        passed
    }

    /// The transport loops back in order.
    fn loop_back(&mut self, cx: &Cx<'_>, seqno: u64, message: &mut Message) {
        self.delivered += 1;
        if self.is_fixed() {
            let own = self.peers.entry(cx.local().clone()).or_insert_with(|| Peer::new(0, 1));
            own.acks.consumption.expect(seqno, message);
        }
    }

    fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        seqno: u64,
        message: Message,
        ready: &mut Vec<Message>,
    ) {
        if !self.is_server {
            self.keep_early(cx, seqno, message);
            return;
        }
        if cx.is_local(src) {
            return; // This member's own message, retransmitted by multicast.
        }
        let is_fixed = self.is_fixed();
        let Some(peer) = self.peers.get_mut(src) else { return self.drop_non_member(cx, &message) };
        let before = ready.len();
        let delivered = peer.window.highest_delivered();
        #[cfg(feature = "injected-bugs")]
        let again = message.clone();
        let insertion = peer.window.add(seqno, message, ready);
        #[cfg(feature = "injected-bugs")]
        if insertion == Insertion::Duplicate && cx.has_bug(crate::InjectedBug::DuplicateDelivered) {
            ready.push(again);
        }
        count_refused(cx, insertion, src, seqno, &peer.window);
        self.delivered += (ready.len() - before) as u64;
        if is_fixed {
            let after = peer.window.highest_delivered();
            peer.acks.consumption.expect_all(&mut ready[before..], delivered, after);
        }
        request_soon(cx, &mut peer.window, self.config.xmit_interval);
    }

    fn keep_early(&mut self, cx: &mut Cx<'_>, seqno: u64, mut message: Message) {
        if self.early.len() >= self.config.become_server_queue_size {
            return cx.discard(&message, DropReason::NotServer);
        }
        message.headers.put(self.id(), self.kind.header(NakAckHeader::Msg { seqno }));
        self.early.push_back(message);
    }

    pub(super) fn replay_early(&mut self, cx: &mut Cx<'_>) {
        for message in std::mem::take(&mut self.early) {
            let mut batch = MessageBatch::single(message);
            self.receive_batch(cx, &mut batch);
            cx.deliver_batch(batch);
        }
    }

    fn highest_seqno(&mut self, cx: &mut Cx<'_>, src: &Address, seqno: u64) {
        if cx.is_local(src) || !self.is_server {
            return;
        }
        let is_fixed = self.is_fixed();
        let Some(peer) = self.peers.get_mut(src) else { return };
        peer.acks.is_due |= is_fixed;
        if peer.window.highest_received() < seqno {
            let mut list = SeqnoList::new(seqno, 1);
            list.add(seqno);
            self.request(cx, src, list);
        }
    }

    fn request(&mut self, cx: &mut Cx<'_>, sender: &Address, list: SeqnoList) {
        self.xmit.requests_sent += 1;
        let dest = (!self.config.use_mcast_xmit_req).then(|| sender.clone());
        let header = self.kind.header(NakAckHeader::XmitReq { sender: Box::new(sender.clone()) });
        let mut message = xmit_request(dest, list, self.id(), header);
        message.transient |= Transient::DONT_LOOPBACK;
        cx.send(message);
    }

    pub(super) fn request_gaps(&mut self, cx: &mut Cx<'_>, gaps: Gaps) {
        let windows = self.peers.iter_mut().map(|(sender, peer)| (sender, &mut peer.window));
        let wanted = gaps_of(windows, gaps, self.config.max_xmit_req_size);
        for (sender, list) in wanted {
            #[cfg(feature = "injected-bugs")]
            let list = if cx.has_bug(crate::InjectedBug::GapOffByOne) {
                let seqnos: Vec<u64> = list.iter().collect();
                let [first, .., last] = seqnos[..] else { continue };
                let mut shorter = SeqnoList::new(first, (last - first) as u32);
                seqnos[..seqnos.len() - 1].iter().for_each(|&seqno| {
                    shorter.add(seqno);
                });
                shorter
            } else {
                list
            };
            self.request(cx, &sender, list);
        }
    }

    /// The stability round listed messages that never arrived.
    pub(super) fn request_last(&mut self, cx: &mut Cx<'_>, sender: &Address, seqno: u64) {
        let mut list = SeqnoList::new(seqno, 1);
        list.add(seqno);
        self.request(cx, sender, list);
    }

    pub(super) fn note_consumed(&mut self, cx: &mut Cx<'_>, src: &Address, credit: u64) {
        let threshold = self.ack_threshold();
        let Some(peer) = self.peers.get_mut(src) else { return };
        peer.acks.consume(credit);
        if peer.acks.messages >= threshold {
            self.ack(cx, &src.clone());
        }
    }

    fn ack(&mut self, cx: &mut Cx<'_>, member: &Address) {
        let Some(peer) = self.peers.get_mut(member) else { return };
        peer.acks.reset();
        let seqno = peer.acks.consumption.up_to();
        if cx.is_local(member) {
            return self.acked(cx, member, seqno);
        }
        let ack = Message::empty(Some(member.clone()))
            .with_flags(Flags::OOB)
            .with_header(self.id(), self.kind.header(NakAckHeader::Ack { seqno }));
        cx.send(ack);
    }

    pub(super) fn send_due_acks(&mut self, cx: &mut Cx<'_>) {
        let due = due_acks(self.peers.iter().map(|(member, peer)| (member, &peer.acks)));
        for member in due {
            self.ack(cx, &member);
        }
    }
}
