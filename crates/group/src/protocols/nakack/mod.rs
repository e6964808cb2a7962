//! NAKACK2 and NAKACK4: reliable multicasts, in order per sender (facts section 15).
//!
//! Guarantees: a member delivers the multicasts of each member of its view in the order of their numbers, none twice
//! and none left out; messages of non-members are dropped. Gaps are asked for. NAKACK2 keeps what was sent until
//! STABLE says that everybody has it; NAKACK4 until everybody has acknowledged it, and it sends no further ahead of
//! the slowest member than its capacity: what does not fit waits here, in order.

mod digests;
mod receiving;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::consumption::Consumption;
use crate::window::{ReceiveWindow, SendWindow, notice_all, first_request_delay};
use crate::{
    Address, Answer, Control, Cx, DropReason, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch,
    NakAckHeader, Pass, ProbeOut, Protocol, ProtocolId, Query, StackCount, TimerKey,
};

/// Which generation's wire and rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakAckKind {
    /// Windows grow, STABLE purges.
    NakAck2,
    /// Windows are fixed, acknowledgements purge.
    NakAck4,
}

impl NakAckKind {
    const fn name(self) -> &'static str {
        match self {
            Self::NakAck2 => "NAKACK2",
            Self::NakAck4 => "NAKACK4",
        }
    }

    const fn id(self) -> ProtocolId {
        match self {
            Self::NakAck2 => ProtocolId::NAKACK2,
            Self::NakAck4 => ProtocolId::NAKACK4,
        }
    }

    const fn header(self, header: NakAckHeader) -> HeaderBody {
        match self {
            Self::NakAck2 => HeaderBody::NakAck2(header),
            Self::NakAck4 => HeaderBody::NakAck4(header),
        }
    }
}

crate::properties! {
    /// NAKACK2's and NAKACK4's properties.
    NakAckConfig {
        /// How often gaps are looked for. Short enough to repair a loss within a heartbeat, long against a round trip.
        xmit_interval: Duration = Duration::from_secs(1),
        /// Whether lost messages are multicast again instead of sent to who asked.
        use_mcast_xmit: bool = true,
        /// Whether requests for lost messages are multicast.
        use_mcast_xmit_req: bool = false,
        /// Seqnos in one request at most.
        max_xmit_req_size: usize = 1024,
        /// Whether the last message's number is announced when nothing follows it.
        resend_last_seqno: bool = true,
        /// How often it is announced.
        resend_last_seqno_max_times: u32 = 1,
        /// Multicasts kept while joining.
        become_server_queue_size: usize = 50,
        /// Messages that may be unacknowledged (NAKACK4).
        capacity: usize = 16384,
        /// Messages per acknowledgement (NAKACK4); 0 = a quarter of the capacity.
        ack_threshold: usize = 0,
    }
}

/// How far ahead of the next expected message one may be (NAKACK2, whose windows grow). A peer that numbers its
/// messages wildly must not make us allocate; honest ones are bounded by flow control long before.
const WINDOW_MAX: usize = 1 << 18;

const TICK: TimerKey = TimerKey(1);

/// What is missing is asked for the first time.
const SOON: TimerKey = TimerKey(2);

/// Members that are gone and remembered; those that come back do so within minutes.
const FORMER_MAX: usize = 1_000;

/// A sender as a receiver sees it.
#[derive(Debug)]
struct Peer {
    window: ReceiveWindow,
    /// NAKACK4: what is acknowledged.
    consumption: Consumption,
    /// NAKACK4: consumed since the last acknowledgement.
    unacked: usize,
    is_ack_due: bool,
}

impl Peer {
    fn new(delivered: u64, capacity: usize) -> Self {
        Self {
            window: ReceiveWindow::new(delivered, capacity),
            consumption: Consumption::from(delivered),
            unacked: 0,
            is_ack_due: false,
        }
    }
}

/// The protocol.
pub struct NakAck {
    kind: NakAckKind,
    config: NakAckConfig,
    is_server: bool,
    /// Multicasts that arrived while joining.
    early: VecDeque<Message>,
    /// The view's members, and ourselves among them.
    order: Vec<Address>,
    local: Option<Address>,
    sent: SendWindow,
    has_sent_since_tick: bool,
    announced: (u64, u32),
    peers: BTreeMap<Address, Peer>,
    /// How far the messages of members that are gone had been delivered, newest last. A member that was left out of a
    /// view and let in again goes on numbering; its old messages must not be delivered twice.
    former: VecDeque<(Address, u64)>,
    /// NAKACK4: what the other members have acknowledged.
    acks: BTreeMap<Address, u64>,
    /// NAKACK4: the last message of ours that comes back to us.
    last_looped: u64,
    /// NAKACK4: messages that wait for room in the send window.
    waiting: VecDeque<Message>,
    waiting_bytes: u64,
    last_stable: Option<crate::Digest>,
    xmit_requests_sent: u64,
    xmit_requests_received: u64,
    resent: u64,
    delivered: u64,
}

impl NakAck {
    /// The protocol as not yet joined.
    pub fn new(kind: NakAckKind, config: NakAckConfig) -> Self {
        Self {
            kind,
            config,
            is_server: false,
            early: VecDeque::new(),
            order: Vec::new(),
            local: None,
            sent: SendWindow::default(),
            has_sent_since_tick: false,
            announced: (0, 0),
            peers: BTreeMap::new(),
            former: VecDeque::new(),
            acks: BTreeMap::new(),
            last_looped: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_stable: None,
            xmit_requests_sent: 0,
            xmit_requests_received: 0,
            resent: 0,
            delivered: 0,
        }
    }

    fn is_fixed(&self) -> bool {
        self.kind == NakAckKind::NakAck4
    }

    fn capacity(&self) -> usize {
        if self.is_fixed() { self.config.capacity.max(1) } else { WINDOW_MAX }
    }

    fn ack_threshold(&self) -> usize {
        match self.config.ack_threshold {
            0 => (self.config.capacity / 4).max(1),
            threshold => threshold,
        }
    }

    fn peer(&self, delivered: u64) -> Peer {
        Peer::new(delivered, self.capacity())
    }

    fn reset(&mut self) {
        *self = Self::new(self.kind, self.config.clone());
    }
}

/// The number of a message that was sent for the first time.
fn seqno_of(body: &HeaderBody) -> Option<u64> {
    match body {
        HeaderBody::NakAck2(NakAckHeader::Msg { seqno })
        | HeaderBody::NakAck4(NakAckHeader::Msg { seqno }) => Some(*seqno),
        _ => None,
    }
}

fn nakack_of(body: HeaderBody) -> Option<NakAckHeader> {
    match body {
        HeaderBody::NakAck2(header) | HeaderBody::NakAck4(header) => Some(header),
        _ => None,
    }
}

impl Protocol for NakAck {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn id(&self) -> ProtocolId {
        self.kind.id()
    }

    fn start(&mut self, cx: &mut Cx<'_>) {
        cx.arm(TICK, self.config.xmit_interval);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if batch.messages.iter().any(is_ours) {
            self.send_batch(cx, batch);
        }
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.receive_batch(cx, batch);
    }

    fn down_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            self.reset();
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        self.control_digest(cx, control);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == SOON {
            self.request_gaps(cx, ReceiveWindow::noticed_gaps);
            if notice_all(self.peers.values_mut().map(|one| &mut one.window)) {
                cx.arm(SOON, first_request_delay(self.config.xmit_interval));
            }
            return;
        }
        cx.arm(TICK, self.config.xmit_interval);
        self.request_gaps(cx, ReceiveWindow::gaps_to_request);
        self.announce_last(cx);
        if self.is_fixed() {
            self.send_due_acks(cx);
            self.purge_acked(cx);
        }
    }

    fn consumed(&mut self, cx: &mut Cx<'_>, src: &Address, is_multicast: bool, credit: u64) {
        if self.is_fixed() && is_multicast {
            self.note_consumed(cx, src, credit);
        }
    }

    fn held(&self, dest: Option<&Address>) -> u64 {
        if dest.is_none() { self.waiting_bytes } else { 0 }
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::DigestOf(member) => {
                let row = self.digest_row(member)?;
                Some(Answer::Digest(crate::Digest { entries: vec![row] }))
            }
            Query::Digest => Some(Answer::Digest(self.digest())),
            Query::HasGap { sender, is_multicast: true } => {
                let peer = self.peers.get(*sender);
                Some(Answer::Yes(peer.is_some_and(|peer| peer.window.len() > 0)))
            }
            // Half a window: the other half is enough to fill and acknowledge.
            Query::Withholdable { is_multicast: true, piece } if self.is_fixed() => {
                Some(Answer::Number(self.config.capacity as u64 / 2 * piece))
            }
            _ => None,
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![
            (StackCount::RetransmissionRequestsSent, self.xmit_requests_sent),
            (StackCount::RetransmissionRequestsReceived, self.xmit_requests_received),
            (StackCount::RetransmittedMessages, self.resent),
        ]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("current_seqno", self.sent.highest_sent());
        out.put("size_of_all_messages_sent", self.sent.len());
        out.put("waiting", self.waiting.len());
        out.put("window_messages", self.peers.values().map(|peer| peer.window.len()).sum::<usize>());
        out.put("xmit_reqs_sent", self.xmit_requests_sent);
        out.put("xmit_reqs_received", self.xmit_requests_received);
        out.put("xmit_rsps_sent", self.resent);
        out.put("num_messages_delivered", self.delivered);
    }
}

/// Whether a message on its way down gets a number.
fn is_ours(message: &Message) -> bool {
    message.is_multicast() && !message.flags.has(Flags::NO_RELIABILITY)
}

impl NakAck {
    fn drop_stranger(&self, cx: &mut Cx<'_>, message: &Message) {
        cx.discard(message, DropReason::NotMember);
    }
}

#[cfg(test)]
mod tests;
