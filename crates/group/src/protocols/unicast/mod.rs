//! UNICAST3 and UNICAST4: reliable unicasts, in order per sender.
//!
//! Guarantees: between two members every unicast is delivered once, in the order of sending. A receiver requests a
//! missed start of a connection. UNICAST4's windows are fixed: a sender is at most its capacity ahead of the consumed
//! messages; further ones wait here, in order.

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
    Address, Answer, Control, Cx, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch, Pass, ProbeOut,
    Protocol, ProtocolId, Query, SeqnoList, StackCount, Time, TimerKey, UnicastHeader, View,
};

/// The protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnicastKind {
    /// Windows grow.
    Unicast3,
    /// Windows are fixed.
    Unicast4,
}

impl UnicastKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Unicast3 => "UNICAST3",
            Self::Unicast4 => "UNICAST4",
        }
    }

    const fn id(self) -> ProtocolId {
        match self {
            Self::Unicast3 => ProtocolId::UNICAST3,
            Self::Unicast4 => ProtocolId::UNICAST4,
        }
    }

    const fn header(self, header: UnicastHeader) -> HeaderBody {
        match self {
            Self::Unicast3 => HeaderBody::Unicast3(header),
            Self::Unicast4 => HeaderBody::Unicast4(header),
        }
    }
}

crate::properties! {
    /// The properties of both kinds.
    UnicastConfig {
        /// The time between checks for gaps and unacknowledged messages.
        xmit_interval: Duration = Duration::from_millis(500),
        /// The maximum number of received messages per acknowledgement; 0 = 100, with UNICAST4 a quarter of
        /// the capacity. Large messages are acknowledged after 128 KiB.
        ack_threshold: usize = 0,
        /// Idle connections are closed after this time.
        conn_expiry_timeout: Duration = Duration::from_secs(120),
        /// Closing connections are forgotten after this time.
        conn_close_timeout: Duration = Duration::from_secs(240),
        /// The minimum time between two requests for a connection's start, per member.
        sync_min_interval: Duration = Duration::from_secs(2),
        /// The maximum number of seqnos in a request.
        max_xmit_req_size: usize = 1024,
        /// The maximum number of unacknowledged messages (UNICAST4).
        capacity: usize = 2048,
    }
}

/// About 100 messages of 1 KB. The sender keeps unacknowledged messages.
const ACK_BYTES: u64 = 128 * 1024;

/// A connection's start is missing for a round trip at most.
const EARLY_MAX: usize = 1024;

/// Invented senders cannot grow the table. Joiners and members of other partitions are counted.
const NON_MEMBER_SENDERS_MAX: usize = 1_000;

/// Senders that continue a closed connection do so within minutes.
const CLOSED_CONNECTIONS_MAX: usize = 1_000;

/// Words of 64 seqnos in which delivered out-of-band messages of closed connections are remembered: 1 MiB, 32 full
/// windows. Beyond it they are forgotten, because an out-of-band message delivered twice is better
/// than one never delivered.
const CLOSED_CONNECTION_WORDS_MAX: usize = 1 << 17;

const CONN_IDS: u64 = 1 << 15;

#[derive(Debug)]
struct SendConnection {
    conn_id: i16,
    window: SendWindow,
    /// Acknowledgements and requests have it.
    last_timestamp: Option<i32>,
    /// The highest acknowledged seqno and the highest sent one.
    at_last_tick: (u64, u64),
    last_used: Time,
    /// The member left the view, or the connection was idle.
    closing_since: Option<Time>,
    waiting: WaitingMessages,
}

#[derive(Debug)]
struct ReceiveConnection {
    conn_id: i16,
    window: ReceiveWindow,
    acks: OwedAcks,
    last_used: Time,
    closing_since: Option<Time>,
    /// The sender was in no view at the opening, or left one. A restarted process may choose a smaller id.
    may_go_back: bool,
}

#[derive(Debug, Default)]
struct EarlyMessages {
    messages: VecDeque<EarlyMessage>,
    last_request: Option<Time>,
}

#[derive(Debug)]
struct EarlyMessage {
    conn_id: i16,
    seqno: u64,
    /// `None`: delivered without waiting for the connection's first message.
    message: Option<Message>,
}

/// The sender may continue it, and late messages may arrive after a newer one was opened; none may be delivered
/// again.
#[derive(Debug)]
struct ClosedConnection {
    sender: Address,
    conn_id: i16,
    /// All messages up to here were delivered.
    delivered: u64,
    /// Out-of-band messages delivered ahead of their turn.
    ahead: SeqnoList,
}

impl ClosedConnection {
    fn new(sender: Address, connection: &ReceiveConnection) -> Self {
        Self {
            sender,
            conn_id: connection.conn_id,
            delivered: connection.window.highest_delivered(),
            ahead: connection.window.delivered_ahead(),
        }
    }

    fn has(&self, seqno: u64) -> bool {
        seqno <= self.delivered || self.ahead.iter().any(|ahead| ahead == seqno)
    }
}

/// The UNICAST layer.
pub struct Unicast {
    kind: UnicastKind,
    config: UnicastConfig,
    next_conn_id: i16,
    /// All peers' acknowledgements and requests share it.
    timestamp: i32,
    senders: BTreeMap<Address, SendConnection>,
    receivers: BTreeMap<Address, ReceiveConnection>,
    early: BTreeMap<Address, EarlyMessages>,
    /// The newest is last.
    closed: VecDeque<ClosedConnection>,
    xmit: XmitCounts,
    acks_sent: u64,
    acks_received: u64,
}

impl Unicast {
    /// Creates the layer.
    pub fn new(kind: UnicastKind, config: UnicastConfig) -> Self {
        Self {
            kind,
            config,
            next_conn_id: 0,
            timestamp: 0,
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            early: BTreeMap::new(),
            closed: VecDeque::new(),
            xmit: XmitCounts::default(),
            acks_sent: 0,
            acks_received: 0,
        }
    }

    fn is_fixed(&self) -> bool {
        self.kind == UnicastKind::Unicast4
    }

    fn capacity(&self) -> usize {
        capacity(self.is_fixed(), self.config.capacity)
    }

    fn ack_threshold(&self) -> usize {
        match self.config.ack_threshold {
            0 if self.is_fixed() => fixed_ack_threshold(self.config.capacity),
            0 => 100,
            threshold => threshold,
        }
    }

    fn next_timestamp(&mut self) -> i32 {
        self.timestamp = self.timestamp.wrapping_add(1);
        self.timestamp
    }

    /// Returned members' connections resume.
    fn view(&mut self, now: Time, view: &View) {
        for (member, connection) in &mut self.senders {
            connection.closing_since =
                if view.contains(member) { None } else { connection.closing_since.or(Some(now)) };
            if !view.contains(member) {
                // The member may return under the same address and restart its count.
                connection.last_timestamp = None;
            }
        }
        for (member, connection) in &mut self.receivers {
            connection.closing_since =
                if view.contains(member) { None } else { connection.closing_since.or(Some(now)) };
            connection.may_go_back |= !view.contains(member);
        }
        self.early.retain(|member, _| view.contains(member));
    }

    /// A current member gets a Close.
    fn expire(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let (expiry, close) = (self.config.conn_expiry_timeout, self.config.conn_close_timeout);
        let is_over = |last_used: Time, closing: &mut Option<Time>| {
            if closing.is_none() && !expiry.is_zero() && now.since(last_used) >= expiry {
                *closing = Some(now);
            }
            closing.is_some_and(|since| now.since(since) >= close)
        };
        let mut closed = Vec::new();
        self.senders.retain(|member, connection| {
            let is_gone = connection.window.len() == 0
                && is_over(connection.last_used, &mut connection.closing_since)
                || connection.closing_since.is_some_and(|since| now.since(since) >= close);
            if is_gone {
                closed.push((member.clone(), connection.conn_id));
            }
            !is_gone
        });
        let over = self.receivers.extract_if(.., |_, connection| {
            // A sender that still had the connection would have filled the gap or resent its last message.
            let is_abandoned = connection.window.len() > 0 && now.since(connection.last_used) >= close;
            is_abandoned || is_over(connection.last_used, &mut connection.closing_since)
        });
        let over: Vec<ClosedConnection> =
            over.map(|(member, connection)| ClosedConnection::new(member, &connection)).collect();
        self.remember(over);
        for (member, conn_id) in closed {
            if cx.view().is_some_and(|view| view.contains(&member)) {
                let close = Message::empty(Some(member))
                    .with_header(self.id(), self.kind.header(UnicastHeader::Close { conn_id }));
                cx.send(close);
            }
        }
    }

    fn closed_connection(&self, sender: &Address, conn_id: i16) -> Option<&ClosedConnection> {
        self.closed.iter().rev().find(|closed| closed.conn_id == conn_id && closed.sender == *sender)
    }

    /// The newest take precedence.
    fn remember(&mut self, over: Vec<ClosedConnection>) {
        if over.is_empty() {
            return;
        }
        let is_over = |known: &ClosedConnection| {
            over.iter().any(|over| over.conn_id == known.conn_id && over.sender == known.sender)
        };
        self.closed.retain(|known| !is_over(known));
        self.closed.extend(over);
        while self.closed.len() > CLOSED_CONNECTIONS_MAX {
            self.closed.pop_front();
        }
        let mut room = CLOSED_CONNECTION_WORDS_MAX;
        for closed in self.closed.iter_mut().rev() {
            match room.checked_sub(closed.ahead.words.len()) {
                Some(left) => room = left,
                None => closed.ahead = SeqnoList::default(),
            }
        }
    }
}

fn unicast_of(body: HeaderBody) -> Option<UnicastHeader> {
    match body {
        HeaderBody::Unicast3(header) | HeaderBody::Unicast4(header) => Some(header),
        _ => None,
    }
}

impl Protocol for Unicast {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn id(&self) -> ProtocolId {
        self.kind.id()
    }

    fn start(&mut self, cx: &mut Cx<'_>) {
        // Peers identify connections by address and id. A process that restarts under its old address must
        // not seem to continue an old one.
        self.next_conn_id = cx.rng().below(CONN_IDS) as i16;
        cx.arm(TICK, self.config.xmit_interval);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if batch.messages.iter().any(|message| is_numbered(cx, message)) {
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
            // Connection ids continue, so that peers distinguish the next connection from this one.
            let next_conn_id = self.next_conn_id;
            *self = Self { next_conn_id, ..Self::new(self.kind, self.config.clone()) };
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.view(cx.now(), view);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == FIRST_REQUEST {
            self.request_gaps(cx, ReceiveWindow::noticed_gaps);
            let windows = self.receivers.values_mut().map(|connection| &mut connection.window);
            return request_rest_soon(cx, windows, self.config.xmit_interval);
        }
        cx.arm(TICK, self.config.xmit_interval);
        self.send_due_acks(cx);
        self.request_gaps(cx, ReceiveWindow::gaps_to_request);
        self.resend_stalled(cx);
        self.expire(cx);
    }

    fn consumed(&mut self, cx: &mut Cx<'_>, src: &Address, is_multicast: bool, credit: u64) {
        if self.is_fixed() && !is_multicast {
            self.note_consumed(cx, src, credit);
        }
    }

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        dest.and_then(|dest| self.senders.get(dest)).map_or(0, |connection| connection.waiting.bytes())
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::HasGap { sender, is_multicast: false } => {
                let connection = self.receivers.get(*sender);
                Some(Answer::Yes(connection.is_some_and(|connection| connection.window.len() > 0)))
            }
            Query::Withholdable { is_multicast: false, piece } if self.is_fixed() => {
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
        out.put("num_send_connections", self.senders.len());
        out.put("num_receive_connections", self.receivers.len());
        out.put("num_unacked_messages", self.senders.values().map(|c| c.window.len()).sum::<usize>());
        out.put("window_messages", self.receivers.values().map(|c| c.window.len()).sum::<usize>());
        self.xmit.probe(out);
        out.put("num_acks_sent", self.acks_sent);
        out.put("num_acks_received", self.acks_received);
    }
}

/// The transport loops unicasts to this member back.
fn is_numbered(cx: &Cx<'_>, message: &Message) -> bool {
    match &message.dest {
        None | Some(Address::Ip(_)) => false,
        Some(dest) => !message.flags.has(Flags::NO_RELIABILITY) && !cx.is_local(dest),
    }
}

#[cfg(test)]
mod tests;
