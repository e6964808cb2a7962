use super::{
    ACK_BYTES, ClosedConnection, EARLY_MAX, EarlyMessage, NON_MEMBER_SENDERS_MAX, ReceiveConnection, Unicast,
    unicast_of,
};
use crate::consumption::{OwedAcks, due_acks};
use crate::retransmission::{count_refused, gaps_of, request_soon, xmit_request};
use crate::window::{Gaps, ReceiveWindow};
use crate::{
    Address, Cx, DropReason, Flags, HeaderBody, Message, MessageBatch, Protocol, Transient, UnicastHeader,
};

enum ConnectionMatch {
    Current,
    Opens,
    Early,
    Stale,
}

impl Unicast {
    pub(super) fn receive_batch(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        let is_oob = batch.is_oob();
        let Some(src) = batch.src().cloned() else { return };
        let in_turn = self.pass_in_turn(cx, &src, batch);
        let mut ready = std::mem::take(&mut batch.messages);
        for mut message in ready.split_off(in_turn) {
            match message.headers.take(id).and_then(unicast_of) {
                None => ready.push(message),
                Some(UnicastHeader::Data { seqno, conn_id, first }) => {
                    self.receive(cx, &src, seqno, conn_id, first, message, &mut ready);
                }
                Some(UnicastHeader::Ack { seqno, conn_id, timestamp }) => {
                    self.acked(cx, &src, seqno, conn_id, timestamp);
                }
                Some(UnicastHeader::SendFirstSeqno { timestamp }) => self.send_first(cx, &src, timestamp),
                Some(UnicastHeader::XmitReq) => self.resend(cx, &src, &message),
                Some(UnicastHeader::Close { conn_id }) => {
                    if self.receivers.get(&src).is_some_and(|connection| connection.conn_id == conn_id)
                        && let Some(closed) = self.receivers.remove(&src)
                    {
                        self.remember(vec![ClosedConnection::new(src.clone(), &closed)]);
                    }
                }
            }
        }
        cx.refill(batch, ready, false, is_oob);
        if !self.is_fixed() {
            self.ack_if_many(cx, &src);
        }
    }

    /// Most messages are in turn, and need not move.
    fn pass_in_turn(&mut self, cx: &Cx<'_>, src: &Address, batch: &mut MessageBatch) -> usize {
        let (id, is_fixed) = (self.id(), self.is_fixed());
        let Some(connection) = self.receivers.get_mut(src) else { return 0 };
        let (mut passed, mut bytes) = (0, 0);
        for message in &mut batch.messages {
            let seqno = match message.headers.get(id) {
                Some(
                    HeaderBody::Unicast3(UnicastHeader::Data { seqno, conn_id, .. })
                    | HeaderBody::Unicast4(UnicastHeader::Data { seqno, conn_id, .. }),
                ) if *conn_id == connection.conn_id => *seqno,
                _ => break,
            };
            if !connection.window.pass(seqno) {
                break;
            }
            message.headers.take(id);
            if is_fixed {
                connection.acks.consumption.expect(seqno, message);
            }
            passed += 1;
            bytes += message.length() as u64;
        }
        if passed > 0 {
            connection.last_used = cx.now();
            connection.acks.is_due = true;
            // A fixed window acknowledges consumed messages; see `note_consumed`.
            if !is_fixed {
                connection.acks.messages += passed;
                connection.acks.bytes += bytes;
            }
        }
        passed
    }

    fn match_connection(&self, src: &Address, conn_id: i16, first: bool) -> ConnectionMatch {
        let current = self.receivers.get(src).map(|connection| (connection.conn_id, connection.may_go_back));
        // A wrapped id is a small step back, not a large one.
        let is_before = |current: i16| conn_id < current && current.wrapping_sub(conn_id) < i16::MAX / 2;
        match current {
            Some((current, _)) if current == conn_id => ConnectionMatch::Current,
            // UNICAST4's connections only move forward. UNICAST3's may go back, but late messages of a
            // previous connection must not replace a newer one.
            Some((current, false))
                if is_before(current)
                    && (self.is_fixed() || self.closed_connection(src, conn_id).is_some()) =>
            {
                ConnectionMatch::Stale
            }
            _ if first => ConnectionMatch::Opens,
            _ => ConnectionMatch::Early,
        }
    }

    #[allow(clippy::too_many_arguments)] // the parts of one message
    fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        seqno: u64,
        conn_id: i16,
        first: bool,
        message: Message,
        ready: &mut Vec<Message>,
    ) {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::UnicastConnectionIgnored) && self.receivers.contains_key(src) {
            return self.accept(cx, src, seqno, message, ready);
        }
        match self.match_connection(src, conn_id, first) {
            ConnectionMatch::Current => self.accept(cx, src, seqno, message, ready),
            ConnectionMatch::Opens => {
                if !self.open(cx, src, conn_id, seqno) {
                    return cx.discard(&message, DropReason::QueueFull);
                }
                self.accept(cx, src, seqno, message, ready);
                if let Some(early) = self.early.remove(src) {
                    for early in early.messages.into_iter().filter(|early| early.conn_id == conn_id) {
                        match early.message {
                            Some(message) => self.accept(cx, src, early.seqno, message, ready),
                            None => self.skip_delivered(src, early.seqno, ready),
                        }
                    }
                }
            }
            ConnectionMatch::Early => {
                if let Some(message) = self.keep_early(cx, src, seqno, conn_id, message) {
                    ready.push(message);
                }
            }
            ConnectionMatch::Stale => cx.discard(&message, DropReason::Duplicate),
        }
    }

    fn open(&mut self, cx: &Cx<'_>, src: &Address, conn_id: i16, seqno: u64) -> bool {
        let is_member = cx.view().is_some_and(|view| view.contains(src));
        if !is_member && !self.receivers.contains_key(src) {
            let strangers = self.receivers.len().saturating_sub(cx.view().map_or(0, crate::View::len));
            if strangers >= NON_MEMBER_SENDERS_MAX {
                return false;
            }
        }
        let closed = self.closed_connection(src, conn_id);
        let delivered = seqno.saturating_sub(1).max(closed.map_or(0, |closed| closed.delivered));
        #[cfg(feature = "injected-bugs")]
        let delivered = if cx.has_bug(crate::InjectedBug::UnicastWindowOffByOne) { seqno } else { delivered };
        let window = ReceiveWindow::new(delivered, self.capacity());
        let window = match closed {
            Some(closed) => window.with_delivered(&closed.ahead),
            None => window,
        };
        let delivered = window.highest_delivered();
        let connection = ReceiveConnection {
            conn_id,
            window,
            acks: OwedAcks::from(delivered),
            last_used: cx.now(),
            may_go_back: !is_member,
            // The sender may be gone, and no view reports it.
            closing_since: (!is_member && cx.view().is_some()).then_some(cx.now()),
        };
        if let Some(replaced) = self.receivers.insert(src.clone(), connection) {
            self.remember(vec![ClosedConnection::new(src.clone(), &replaced)]);
        }
        true
    }

    #[inline]
    fn accept(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        seqno: u64,
        message: Message,
        ready: &mut Vec<Message>,
    ) {
        let is_fixed = self.is_fixed();
        let Some(connection) = self.receivers.get_mut(src) else { return };
        connection.last_used = cx.now();
        // A fixed window acknowledges consumed messages; see `note_consumed`.
        if !is_fixed {
            connection.acks.messages += 1;
            connection.acks.bytes += message.length() as u64;
        }
        connection.acks.is_due = true;
        let before = ready.len();
        let delivered = connection.window.highest_delivered();
        let insertion = connection.window.add(seqno, message, ready);
        count_refused(cx, insertion, src, seqno, &connection.window);
        if is_fixed {
            let after = connection.window.highest_delivered();
            connection.acks.consumption.expect_all(&mut ready[before..], delivered, after);
        }
        request_soon(cx, &mut connection.window, self.config.xmit_interval);
    }

    /// Returns a message that does not wait for the connection's first one.
    fn keep_early(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        seqno: u64,
        conn_id: i16,
        message: Message,
    ) -> Option<Message> {
        let was_delivered = self.closed_connection(src, conn_id).is_some_and(|closed| closed.has(seqno));
        if !self.early.contains_key(src) && self.early.len() >= NON_MEMBER_SENDERS_MAX {
            cx.discard(&message, DropReason::QueueFull);
            return None;
        }
        let early = self.early.entry(src.clone()).or_default();
        if early.messages.len() >= EARLY_MAX {
            cx.discard(&message, DropReason::QueueFull);
            return None;
        }
        let is_new = !early.messages.iter().any(|known| (known.conn_id, known.seqno) == (conn_id, seqno));
        let waits =
            was_delivered || !message.is_oob() || !message.transient.has(Transient::BEFORE_CONNECTION);
        let (kept, ready) = if waits { (Some(message), None) } else { (None, Some(message)) };
        let ready = ready.filter(|_| is_new);
        if is_new {
            early.messages.push_back(EarlyMessage { conn_id, seqno, message: kept });
        }
        let now = cx.now();
        if early.last_request.is_some_and(|at| now.since(at) < self.config.sync_min_interval) {
            return ready;
        }
        early.last_request = Some(now);
        let timestamp = self.next_timestamp();
        let request = Message::empty(Some(src.clone()))
            .with_flags(Flags::OOB | Flags::NO_FC)
            .with_header(self.id(), self.kind.header(UnicastHeader::SendFirstSeqno { timestamp }));
        cx.send(request);
        ready
    }

    fn skip_delivered(&mut self, src: &Address, seqno: u64, ready: &mut Vec<Message>) {
        let is_fixed = self.is_fixed();
        let Some(connection) = self.receivers.get_mut(src) else { return };
        let (count, before) = (ready.len(), connection.window.highest_delivered());
        connection.window.skip(seqno, ready);
        let after = connection.window.highest_delivered();
        if is_fixed && ready.len() > count {
            connection.acks.consumption.expect_all(&mut ready[count..], before, after);
        } else if is_fixed && after > before {
            connection.acks.consumption.extend_to(after);
        }
    }

    fn ack_if_many(&mut self, cx: &mut Cx<'_>, src: &Address) {
        let threshold = self.ack_threshold();
        let are_many = |ReceiveConnection { acks, .. }: &ReceiveConnection| {
            acks.messages >= threshold || (acks.messages > 0 && acks.bytes >= ACK_BYTES)
        };
        if self.receivers.get(src).is_some_and(are_many) {
            self.ack(cx, src);
        }
    }

    fn ack(&mut self, cx: &mut Cx<'_>, member: &Address) {
        let timestamp = self.next_timestamp();
        let is_fixed = self.is_fixed();
        let Some(connection) = self.receivers.get_mut(member) else { return };
        connection.acks.reset();
        let seqno = if is_fixed {
            connection.acks.consumption.up_to()
        } else {
            connection.window.highest_delivered()
        };
        let header = UnicastHeader::Ack { seqno, conn_id: connection.conn_id, timestamp };
        self.acks_sent += 1;
        let ack = Message::empty(Some(member.clone()))
            .with_flags(Flags::NO_FC)
            .with_header(self.id(), self.kind.header(header));
        cx.send(ack);
    }

    pub(super) fn send_due_acks(&mut self, cx: &mut Cx<'_>) {
        let due = due_acks(self.receivers.iter().map(|(member, connection)| (member, &connection.acks)));
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::UnicastAckLost) {
            return;
        }
        for member in due {
            self.ack(cx, &member);
        }
    }

    pub(super) fn request_gaps(&mut self, cx: &mut Cx<'_>, gaps: Gaps) {
        let windows = self.receivers.iter_mut().map(|(sender, one)| (sender, &mut one.window));
        for (sender, list) in gaps_of(windows, gaps, self.config.max_xmit_req_size) {
            self.xmit.requests_sent += 1;
            let header = self.kind.header(UnicastHeader::XmitReq);
            let request = xmit_request(Some(sender), list, self.id(), header);
            cx.send(request);
        }
    }

    pub(super) fn note_consumed(&mut self, cx: &mut Cx<'_>, src: &Address, credit: u64) {
        let Some(connection) = self.receivers.get_mut(src) else { return };
        connection.acks.consume(credit);
        self.ack_if_many(cx, src);
    }
}
