//! UNICAST3 and UNICAST4: reliable unicasts, in order per sender (facts section 16).
//!
//! Guarantees: between two members every unicast is delivered in the order of sending, once; a receiver that missed
//! the start of a connection asks for it. UNICAST4's windows are fixed: a sender is never further ahead of what the
//! receiver has consumed than its capacity, and what does not fit waits here, in order.

mod receiving;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::consumption::Consumption;
use crate::window::{ReceiveWindow, SendWindow, notice_all, first_request_delay};
use crate::{
    Address, Answer, Control, Cx, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch, Pass, ProbeOut,
    Protocol, ProtocolId, Query, SeqnoList, StackCount, Time, TimerKey, UnicastHeader, View,
};

/// Which generation's wire and rules.
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
    /// UNICAST3's and UNICAST4's properties.
    UnicastConfig {
        /// How often gaps and unacknowledged messages are looked at.
        xmit_interval: Duration = Duration::from_millis(500),
        /// Received messages per acknowledgement at most; 0 = 100, with UNICAST4 a quarter of the capacity. Of large ones
        /// there are fewer: 128 KiB.
        ack_threshold: usize = 0,
        /// Idle connections close after this.
        conn_expiry_timeout: Duration = Duration::from_secs(120),
        /// Closing connections are forgotten after this.
        conn_close_timeout: Duration = Duration::from_secs(240),
        /// At most one request for a connection's start per member in this time.
        sync_min_interval: Duration = Duration::from_secs(2),
        /// Seqnos in one request at most.
        max_xmit_req_size: usize = 1024,
        /// Messages that may be unacknowledged (UNICAST4).
        capacity: usize = 2048,
    }
}

/// Bytes of received messages per acknowledgement at most: about as much as 100 messages of 1 KB are, as the sender keeps
/// all that is not acknowledged.
const ACK_BYTES: u64 = 128 * 1024;

/// How far ahead of the next expected message one may be (UNICAST3, whose windows grow).
const WINDOW_MAX: usize = 1 << 18;

/// Messages kept of a connection whose start is missing, per sender. The start comes within a round trip.
const EARLY_MAX: usize = 1024;

/// Senders that are not members and have a receive window: joiners, and members of other partitions. A flood of
/// invented senders must not grow the table.
const STRANGERS_MAX: usize = 1_000;

/// Forgotten connections that are remembered by number; senders that go on with one do so within minutes.
const FORMER_MAX: usize = 1_000;

/// Words of 64 seqnos in which the out-of-band messages of all of them are remembered: a megabyte, 32 full windows.
/// What does not fit is forgotten: an out-of-band message that comes twice is better than another that never comes.
const FORMER_WORDS_MAX: usize = 1 << 17;

/// Connections' numbers are not negative.
const CONN_IDS: u64 = 1 << 15;

const TICK: TimerKey = TimerKey(1);

/// What is missing is asked for the first time.
const SOON: TimerKey = TimerKey(2);

/// What we send to one member.
#[derive(Debug)]
struct SendConnection {
    conn_id: i16,
    window: SendWindow,
    /// The timestamp of the last acknowledgement or request accepted.
    last_timestamp: Option<i32>,
    /// (highest acknowledged, highest sent) at the last tick.
    at_last_tick: (u64, u64),
    last_used: Time,
    /// When it began to close: the member left the view, or nothing was sent for long.
    closing_since: Option<Time>,
    /// UNICAST4: messages that wait for room.
    waiting: VecDeque<Message>,
    waiting_bytes: u64,
}

/// What one member sends to us.
#[derive(Debug)]
struct ReceiveConnection {
    conn_id: i16,
    window: ReceiveWindow,
    /// Messages received since the last acknowledgement; UNICAST4: consumed since.
    unacked: usize,
    /// Their bytes.
    unacked_bytes: u64,
    is_ack_due: bool,
    last_used: Time,
    closing_since: Option<Time>,
    /// Whether the sender was in no view when the connection was opened, or has left one since: one that starts again
    /// under its old address may choose a smaller number for the next.
    may_go_back: bool,
    /// UNICAST4: what is acknowledged.
    consumption: Consumption,
}

/// Messages whose connection's start is missing.
#[derive(Debug, Default)]
struct Early {
    messages: VecDeque<(i16, u64, Message)>,
    last_request: Option<Time>,
}

/// A connection that was forgotten, closed or replaced. A sender that has not noticed goes on with it, and what is still
/// under way may come after a newer one has been opened; what was delivered must not be delivered again.
#[derive(Debug)]
struct Former {
    sender: Address,
    conn_id: i16,
    /// Everything up to here was delivered.
    delivered: u64,
    /// Out-of-band messages that were delivered ahead of their turn.
    ahead: SeqnoList,
}

impl Former {
    fn of(sender: Address, connection: &ReceiveConnection) -> Self {
        Self {
            sender,
            conn_id: connection.conn_id,
            delivered: connection.window.highest_delivered(),
            ahead: connection.window.delivered_ahead(),
        }
    }
}

/// The protocol.
pub struct Unicast {
    kind: UnicastKind,
    config: UnicastConfig,
    next_conn_id: i16,
    /// Shared by acknowledgements and requests to all peers.
    timestamp: i32,
    senders: BTreeMap<Address, SendConnection>,
    receivers: BTreeMap<Address, ReceiveConnection>,
    early: BTreeMap<Address, Early>,
    /// Connections of senders that were forgotten, newest last.
    former: VecDeque<Former>,
    xmit_requests_sent: u64,
    xmit_requests_received: u64,
    resent: u64,
    acks_sent: u64,
    acks_received: u64,
}

impl Unicast {
    /// The protocol without connections.
    pub fn new(kind: UnicastKind, config: UnicastConfig) -> Self {
        Self {
            kind,
            config,
            next_conn_id: 0,
            timestamp: 0,
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            early: BTreeMap::new(),
            former: VecDeque::new(),
            xmit_requests_sent: 0,
            xmit_requests_received: 0,
            resent: 0,
            acks_sent: 0,
            acks_received: 0,
        }
    }

    fn is_fixed(&self) -> bool {
        self.kind == UnicastKind::Unicast4
    }

    fn capacity(&self) -> usize {
        if self.is_fixed() { self.config.capacity.max(1) } else { WINDOW_MAX }
    }

    fn ack_threshold(&self) -> usize {
        match self.config.ack_threshold {
            0 if self.is_fixed() => (self.config.capacity / 4).max(1),
            0 => 100,
            threshold => threshold,
        }
    }

    fn next_timestamp(&mut self) -> i32 {
        self.timestamp = self.timestamp.wrapping_add(1);
        self.timestamp
    }

    /// Connections to and from members that left begin to close; those of members that are back go on.
    fn view(&mut self, now: Time, view: &View) {
        for (member, connection) in &mut self.senders {
            connection.closing_since =
                if view.contains(member) { None } else { connection.closing_since.or(Some(now)) };
            if !view.contains(member) {
                // It may come back under the same address and count anew.
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

    /// Idle connections close, closed ones are forgotten; a current member is told.
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
            // A sender that has not forgotten it would have filled the gap, or sent its last message again.
            let is_forsaken = connection.window.len() > 0 && now.since(connection.last_used) >= close;
            is_forsaken || is_over(connection.last_used, &mut connection.closing_since)
        });
        let over: Vec<Former> = over.map(|(member, connection)| Former::of(member, &connection)).collect();
        self.remember(over);
        for (member, conn_id) in closed {
            if cx.view().is_some_and(|view| view.contains(&member)) {
                let close = Message::empty(Some(member))
                    .with_header(self.id(), self.kind.header(UnicastHeader::Close { conn_id }));
                cx.send(close);
            }
        }
    }

    /// What is remembered of a sender's connection.
    fn former(&self, sender: &Address, conn_id: i16) -> Option<&Former> {
        self.former.iter().rev().find(|former| former.conn_id == conn_id && former.sender == *sender)
    }

    /// Remembers forgotten connections as far as there is room; the newest go first.
    fn remember(&mut self, over: Vec<Former>) {
        if over.is_empty() {
            return;
        }
        let is_over = |known: &Former| {
            over.iter().any(|over| over.conn_id == known.conn_id && over.sender == known.sender)
        };
        self.former.retain(|known| !is_over(known));
        self.former.extend(over);
        while self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
        let mut room = FORMER_WORDS_MAX;
        for former in self.former.iter_mut().rev() {
            match room.checked_sub(former.ahead.words.len()) {
                Some(left) => room = left,
                None => former.ahead = SeqnoList::default(),
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
        // Peers keep connections by address and number: a process that starts again under its old address must not seem
        // to go on with an old one.
        self.next_conn_id = cx.rng().below(CONN_IDS) as i16;
        cx.arm(TICK, self.config.xmit_interval);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if batch.messages.iter().any(|message| is_ours(cx, message)) {
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
            // Connection numbers go on, so that peers tell the next connection from this one.
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
        if key == SOON {
            self.request_gaps(cx, ReceiveWindow::noticed_gaps);
            if notice_all(self.receivers.values_mut().map(|one| &mut one.window)) {
                cx.arm(SOON, first_request_delay(self.config.xmit_interval));
            }
            return;
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

    fn held(&self, dest: Option<&Address>) -> u64 {
        dest.and_then(|dest| self.senders.get(dest)).map_or(0, |connection| connection.waiting_bytes)
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::HasGap { sender, is_multicast: false } => {
                let connection = self.receivers.get(*sender);
                Some(Answer::Yes(connection.is_some_and(|connection| connection.window.len() > 0)))
            }
            // Half a window: the other half is enough to fill and acknowledge.
            Query::Withholdable { is_multicast: false, piece } if self.is_fixed() => {
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
        out.put("num_send_connections", self.senders.len());
        out.put("num_receive_connections", self.receivers.len());
        out.put("num_unacked_messages", self.senders.values().map(|c| c.window.len()).sum::<usize>());
        out.put("window_messages", self.receivers.values().map(|c| c.window.len()).sum::<usize>());
        out.put("xmit_reqs_sent", self.xmit_requests_sent);
        out.put("xmit_reqs_received", self.xmit_requests_received);
        out.put("xmit_rsps_sent", self.resent);
        out.put("num_acks_sent", self.acks_sent);
        out.put("num_acks_received", self.acks_received);
    }
}

/// Whether a message on its way down gets a number: unicasts to other members. The transport loops those to
/// ourselves back in order and without loss.
fn is_ours(cx: &Cx<'_>, message: &Message) -> bool {
    match &message.dest {
        None | Some(Address::Ip(_)) => false,
        Some(dest) => !message.flags.has(Flags::NO_RELIABILITY) && !cx.is_local(dest),
    }
}

#[cfg(test)]
mod tests;
