//! NAKACK2, NAKACK3 and NAKACK4: reliable multicasts, in order per sender.
//!
//! Guarantees: a member delivers the multicasts of each member of its view in seqno order, once, without gaps; those
//! of non-members are dropped.
//!
//! NAKACK2 and NAKACK3 keep sent messages until STABLE reports that all members have them. NAKACK4 keeps them until
//! all have acknowledged, and sends at most its capacity ahead of the slowest; further messages wait here, in order.

mod digests;
mod receiving;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::consumption::OwedAcks;
use crate::retransmission::{
    FIRST_REQUEST, TICK, WaitingMessages, XmitCounts, capacity, fixed_ack_threshold, request_rest_soon,
    withholdable,
};
use crate::window::{ReceiveWindow, SendWindow};
use crate::{
    Address, Answer, Control, Cx, DropReason, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch,
    NakAckHeader, Pass, ProbeOut, Protocol, ProtocolId, Query, StackCount, TimerKey,
};

/// The protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakAckKind {
    /// Windows grow; STABLE purges.
    NakAck2,
    /// As `NakAck2`, with `NakAck4`'s headers.
    NakAck3,
    /// Windows are fixed; acknowledgements purge.
    NakAck4,
}

impl NakAckKind {
    const fn name(self) -> &'static str {
        match self {
            Self::NakAck2 => "NAKACK2",
            Self::NakAck3 => "NAKACK3",
            Self::NakAck4 => "NAKACK4",
        }
    }

    const fn id(self) -> ProtocolId {
        match self {
            Self::NakAck2 => ProtocolId::NAKACK2,
            Self::NakAck3 => ProtocolId::NAKACK3,
            Self::NakAck4 => ProtocolId::NAKACK4,
        }
    }

    const fn header(self, header: NakAckHeader) -> HeaderBody {
        match self {
            Self::NakAck2 => HeaderBody::NakAck2(header),
            Self::NakAck3 | Self::NakAck4 => HeaderBody::NakAck4(header),
        }
    }
}

crate::properties! {
    /// The properties of all kinds.
    NakAckConfig {
        /// The time between checks for gaps. Short enough to repair a loss within a heartbeat, long compared
        /// with a round trip.
        xmit_interval: Duration = Duration::from_secs(1),
        /// Whether missing messages are retransmitted by multicast instead of to the requester.
        use_mcast_xmit: bool = true,
        /// Whether retransmission requests are multicast.
        use_mcast_xmit_req: bool = false,
        /// The maximum number of seqnos in a request.
        max_xmit_req_size: usize = 1024,
        /// Whether the last message's seqno is announced when no message follows it.
        resend_last_seqno: bool = true,
        /// How often it is announced.
        resend_last_seqno_max_times: u32 = 1,
        /// The maximum number of multicasts kept while joining.
        become_server_queue_size: usize = 50,
        /// The maximum number of unacknowledged messages (NAKACK4).
        capacity: usize = 16384,
        /// Messages per acknowledgement (NAKACK4); 0 = a quarter of the capacity.
        ack_threshold: usize = 0,
    }
}

/// Former members that return do so within minutes.
const DEPARTED_MEMBERS_MAX: usize = 1_000;

#[derive(Debug)]
struct Peer {
    window: ReceiveWindow,
    acks: OwedAcks,
}

impl Peer {
    fn new(delivered: u64, capacity: usize) -> Self {
        Self { window: ReceiveWindow::new(delivered, capacity), acks: OwedAcks::from(delivered) }
    }
}

/// The NAKACK layer.
pub struct NakAck {
    kind: NakAckKind,
    config: NakAckConfig,
    is_server: bool,
    /// Messages that arrived while this member joined.
    early: VecDeque<Message>,
    order: Vec<Address>,
    local: Option<Address>,
    sent: SendWindow,
    has_sent_since_tick: bool,
    announced: (u64, u32),
    peers: BTreeMap<Address, Peer>,
    /// Former members' seqnos. A member that returns continues its numbering, and its old messages must not be delivered twice.
    departed: VecDeque<(Address, u64)>,
    /// The other members' acknowledgements (NAKACK4).
    acks: BTreeMap<Address, u64>,
    /// The last own message that is looped back (NAKACK4).
    last_looped: u64,
    waiting: WaitingMessages,
    last_stable: Option<crate::Digest>,
    xmit: XmitCounts,
    delivered: u64,
}

impl NakAck {
    /// Creates the layer.
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
            departed: VecDeque::new(),
            acks: BTreeMap::new(),
            last_looped: 0,
            waiting: WaitingMessages::default(),
            last_stable: None,
            xmit: XmitCounts::default(),
            delivered: 0,
        }
    }

    fn is_fixed(&self) -> bool {
        self.kind == NakAckKind::NakAck4
    }

    fn capacity(&self) -> usize {
        capacity(self.is_fixed(), self.config.capacity)
    }

    fn ack_threshold(&self) -> usize {
        match self.config.ack_threshold {
            0 => fixed_ack_threshold(self.config.capacity),
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

/// A retransmitted message has none.
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
        if batch.messages.iter().any(is_numbered) {
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
        if key == FIRST_REQUEST {
            self.request_gaps(cx, ReceiveWindow::noticed_gaps);
            let windows = self.peers.values_mut().map(|peer| &mut peer.window);
            return request_rest_soon(cx, windows, self.config.xmit_interval);
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

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        if dest.is_none() { self.waiting.bytes() } else { 0 }
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
            Query::Withholdable { is_multicast: true, piece } if self.is_fixed() => {
                Some(withholdable(self.config.capacity, *piece))
            }
            _ => None,
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        self.xmit.counts()
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("current_seqno", self.sent.highest_sent());
        out.put("size_of_all_messages_sent", self.sent.len());
        out.put("waiting", self.waiting.len());
        out.put("window_messages", self.peers.values().map(|peer| peer.window.len()).sum::<usize>());
        self.xmit.probe(out);
        out.put("num_messages_delivered", self.delivered);
    }
}

fn is_numbered(message: &Message) -> bool {
    message.is_multicast() && !message.flags.has(Flags::NO_RELIABILITY)
}

impl NakAck {
    fn drop_non_member(&self, cx: &mut Cx<'_>, message: &Message) {
        cx.discard(message, DropReason::NotMember);
    }
}

#[cfg(test)]
mod tests;
