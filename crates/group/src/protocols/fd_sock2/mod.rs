//! FD_SOCK2: every member connects to the next member in the view and suspects it when the connection breaks.
//!
//! A crash closes these connections, separate from the transport's, within milliseconds. FD_ALL3 detects a host that
//! vanishes without closing them.
//!
//! A graceful close proves no crash: members close so when they leave, and when two connected to each other at once.
//! If the member is still in the view shortly after, this member reconnects and suspects it only if that fails.
//!
//! Suspicions and withdrawals are sent without reliability. The detecting member repeats a suspicion while it holds;
//! others forget it without repetition. (JGroups keeps it until the member is gone.)

mod ring;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ring::Link;

use super::fd_all::would_lead;
use crate::wire;
use crate::{
    Address, ConnId, Control, Cx, DropReason, Effect, Event, ExternalAddress, FdSock2Header, HeaderBody,
    HeaderIds, Message, MessageBatch, Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, StackCount,
    Time, TimerKey, Token, Transient,
};

crate::properties! {
    /// FD_SOCK2's properties.
    FdSock2Config {
        /// The address to advertise instead of the bound one (behind address translation).
        external_addr: Option<IpAddr> = None,
        /// The port to advertise with `external_addr`; 0 = the bound one.
        external_port: u16 = 0,
        /// The port to connect from. Any value other than 0 (any port) is refused, because connections to
        /// several members cannot share it.
        client_bind_port: u16 = 0,
        /// The offset from the transport's port to the first port to listen on.
        offset: u16 = 100,
        /// How many further ports are tried, for the listener and at the neighbour.
        port_range: u16 = 3,
        /// Ports below this one are raised by it.
        min_port: u16 = 1024,
        /// Ports from this one on wrap to 0.
        max_port: u32 = 65_536,
        /// The limit for connecting to a neighbour, and for its response.
        connect_timeout: Duration = Duration::from_secs(1),
        /// The time between repetitions of a suspicion while the suspect is a member. All members must use
        /// the same value: a member forgets a received suspicion that is not repeated within three of its own
        /// intervals.
        suspect_msg_interval: Duration = Duration::from_secs(5),
    }
}

impl FdSock2Config {
    /// Returns the ports where a member with this transport port may listen, in the order in which it tries them
    /// (facts section 14.1).
    pub fn ports_beside(&self, transport_port: u16) -> Vec<u16> {
        let Self { offset, port_range, min_port, max_port, .. } = *self;
        let first = u32::from(transport_port) + u32::from(offset);
        (0..=u32::from(port_range))
            .map(|nth| (first + nth) % max_port.clamp(1, 65_536))
            .map(|port| if port < u32::from(min_port) { port + u32::from(min_port) } else { port })
            .filter_map(|port| u16::try_from(port).ok())
            .collect()
    }

    /// Checks that connections are possible.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        match self.client_bind_port {
            0 => Ok(()),
            port => {
                let why = format!(
                    "client_bind_port ({port}) is refused: connections to one member after the other cannot share a \
                     port; leave it at 0"
                );
                Err(("client_bind_port", why))
            }
        }
    }
}

/// Each member has at most one to and one from every other, so no working view exceeds it.
const CONNECTIONS_MAX: usize = 2_000;

const ANSWER: TimerKey = TimerKey(1);
const REPORT: TimerKey = TimerKey(2);
const RETRY: TimerKey = TimerKey(3);
const EXPIRE: TimerKey = TimerKey(4);

/// A received suspicion holds for these report intervals: two repetitions may be lost.
const RECEIVED_INTERVALS: u32 = 3;

struct Conn {
    /// The listener's address, or the address connected to.
    peer: PhysAddr,
    is_outgoing: bool,
    is_watched_by_peer: bool,
}

/// The FD_SOCK2 layer.
pub struct FdSock2 {
    config: FdSock2Config,
    /// `None` is all addresses.
    bind: Option<IpAddr>,
    is_connected: bool,
    listener: Option<Token>,
    own: Option<PhysAddr>,
    conns: BTreeMap<ConnId, Conn>,
    neighbour: Option<Address>,
    link: Link,
    /// Members are not connected to before this time: they closed gracefully or were unreachable.
    pauses: BTreeMap<Address, Time>,
    suspects: BTreeSet<Address>,
    /// Each suspicion holds until this time.
    received: BTreeMap<Address, Time>,
    /// Their connection broke; they are reported until they are gone.
    detected: BTreeSet<Address>,
    suspicions: u64,
}

impl FdSock2 {
    /// Creates a layer that listens on all addresses.
    pub fn new(config: FdSock2Config) -> Self {
        Self {
            config,
            bind: None,
            is_connected: false,
            listener: None,
            own: None,
            conns: BTreeMap::new(),
            neighbour: None,
            link: Link::None,
            pauses: BTreeMap::new(),
            suspects: BTreeSet::new(),
            received: BTreeMap::new(),
            detected: BTreeSet::new(),
            suspicions: 0,
        }
    }

    /// Sets the address to listen on; absent: all.
    #[must_use]
    pub fn bound_to(self, bind: Option<IpAddr>) -> Self {
        Self { bind, ..self }
    }

    fn listen(&mut self, cx: &mut Cx<'_>) {
        if std::mem::replace(&mut self.is_connected, true) {
            return;
        }
        let ports = self.config.ports_beside(cx.shared().phys.port);
        let FdSock2Config { external_addr, external_port, .. } = self.config;
        let bind = self.bind;
        let external = ExternalAddress::configured(external_addr, external_port);
        self.listener = Some(cx.request(Effect::Listen { bind, ports, external }));
    }

    fn close_all(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::take(&mut self.is_connected) {
            return;
        }
        cx.request(Effect::CloseListener);
        for conn in std::mem::take(&mut self.conns).into_keys() {
            cx.request(Effect::Close { conn, is_graceful: true });
        }
        for key in [ANSWER, REPORT, RETRY, EXPIRE] {
            cx.disarm(key);
        }
        self.listener = None;
        self.own = None;
        self.neighbour = None;
        self.link = Link::None;
        self.pauses.clear();
        self.suspects.clear();
        self.received.clear();
        self.detected.clear();
    }

    fn write(&self, cx: &mut Cx<'_>, conn: ConnId, header: FdSock2Header) {
        let mut message =
            Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
        message.src = Some(cx.local().clone());
        cx.request(Effect::Write { conn, frame: wire::encode_body(&message) });
    }

    fn frame(&mut self, cx: &mut Cx<'_>, conn: ConnId, frame: &bytes::Bytes) {
        let empty = wire::message_type(&crate::Payload::Empty);
        let decoded =
            wire::decode_body(empty, frame).map(|mut message| message.headers.take(ProtocolId::FD_SOCK2));
        let Ok(Some(HeaderBody::FdSock2(header))) = decoded else {
            cx.request(Effect::Close { conn, is_graceful: false });
            // The edge reports no close for connections that this member closes, so the watch ends here.
            self.closed(cx, conn, false);
            return cx
                .count_drop(DropReason::Malformed, |_| "frame on a failure detection socket".to_owned());
        };
        match *header {
            FdSock2Header::Connect(_) => {
                if let Some(known) = self.conns.get_mut(&conn) {
                    known.is_watched_by_peer = true;
                }
                let cluster = cx.shared().cluster.as_deref().map(str::to_owned);
                let server = cx.local().clone();
                self.write(cx, conn, FdSock2Header::ConnectResponse { cluster, server });
            }
            FdSock2Header::ConnectResponse { cluster, server } => {
                let is_same_cluster = cluster.as_deref() == cx.shared().cluster.as_deref();
                self.answered(cx, conn, is_same_cluster.then_some(server));
            }
            _ => {}
        }
    }

    /// Suspicions are repeated, because multicasts are unreliable here.
    fn multicast(&self, cx: &mut Cx<'_>, header: FdSock2Header) {
        let mut message =
            Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
        message.transient |= Transient::DONT_LOOPBACK;
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn suspect(&mut self, cx: &mut Cx<'_>, member: Address) {
        self.suspicions += 1;
        tracing::debug!(member = %cx.shared().book.member(&member), "the connection to the member broke");
        self.suspects.insert(member.clone());
        self.detected.insert(member);
        self.report_suspects(cx);
    }

    /// Also acts if this member would now lead, because the previous leader may be gone.
    fn report_suspects(&self, cx: &mut Cx<'_>) {
        if self.detected.is_empty() {
            return cx.disarm(REPORT);
        }
        self.multicast(cx, FdSock2Header::Suspect(self.detected.iter().cloned().collect()));
        cx.arm(REPORT, self.report_interval());
        self.raise_suspects(cx);
    }

    fn raise_suspects(&self, cx: &mut Cx<'_>) {
        if !self.suspects.is_empty() && would_lead(cx, &self.suspects) {
            cx.raise(Event::Suspect(self.suspects.iter().cloned().collect()));
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: FdSock2Header, message: &Message) {
        cx.absorb(message);
        let Some(view) = cx.view().cloned() else { return };
        match header {
            FdSock2Header::Suspect(members) => {
                let local = cx.local().clone();
                let until = cx.now() + self.report_interval().saturating_mul(RECEIVED_INTERVALS);
                for member in members.into_iter().filter(|member| view.contains(member) && *member != local) {
                    self.received.insert(member.clone(), until);
                    self.suspects.insert(member);
                }
                self.arm_forget(cx);
                self.raise_suspects(cx);
            }
            FdSock2Header::Unsuspect(members) => {
                self.withdraw(cx, members);
                self.follow_ring(cx);
            }
            // Valid on sockets only.
            _ => cx.count_drop(DropReason::Unexpected, |_| "FD_SOCK2 connect in a message".to_owned()),
        }
    }

    fn report_interval(&self) -> Duration {
        self.config.suspect_msg_interval.max(Duration::from_millis(1))
    }

    fn arm_forget(&self, cx: &mut Cx<'_>) {
        match self.received.values().min() {
            Some(until) => {
                let rest = until.since(cx.now());
                cx.arm(EXPIRE, rest);
            }
            None => cx.disarm(EXPIRE),
        }
    }

    /// The reporter was wrong or is gone; a real crash is detected again.
    fn expire_received(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let over: Vec<Address> =
            self.received.extract_if(.., |_, until| *until <= now).map(|(member, _)| member).collect();
        self.withdraw(cx, over.into_iter().filter(|member| !self.detected.contains(member)).collect());
        self.arm_forget(cx);
    }

    /// The layers above may wait for them, and only this layer reports another member's verification.
    fn withdraw(&mut self, cx: &mut Cx<'_>, mut members: Vec<Address>) {
        members.retain(|member| self.suspects.contains(member));
        if !members.is_empty() {
            self.retain_suspects(cx, |member| !members.contains(member));
            cx.raise(Event::Unsuspect(members));
        }
    }

    fn unsuspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        self.retain_suspects(cx, |member| !members.contains(member));
        self.follow_ring(cx);
    }

    fn retain_suspects(&mut self, cx: &mut Cx<'_>, keep: impl Fn(&Address) -> bool) {
        self.suspects.retain(&keep);
        self.detected.retain(&keep);
        self.received.retain(|member, _| keep(member));
        self.arm_forget(cx);
        if self.detected.is_empty() {
            cx.disarm(REPORT);
        }
    }
}

impl Protocol for FdSock2 {
    fn name(&self) -> &'static str {
        "FD_SOCK2"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::FD_SOCK2
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| match message.headers.take(ProtocolId::FD_SOCK2) {
            Some(HeaderBody::FdSock2(header)) => {
                self.receive(cx, *header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::Unsuspect(members) = event {
            self.unsuspect(cx, members);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Connect => self.listen(cx),
            Event::Disconnect => self.close_all(cx),
            Event::Unsuspect(members) => {
                if members.iter().any(|member| self.suspects.contains(member)) {
                    self.multicast(cx, FdSock2Header::Unsuspect(members.clone()));
                }
                self.unsuspect(cx, members);
            }
            _ => {}
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.retain_suspects(cx, |member| view.contains(member));
            self.pauses.retain(|member, _| view.contains(member));
            self.follow_ring(cx);
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.close_all(cx);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            ANSWER => self.no_answer(cx),
            REPORT => self.report_suspects(cx),
            EXPIRE => self.expire_received(cx),
            _ => self.follow_ring(cx),
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        match outcome {
            Outcome::Listening(own) if self.listener == Some(token) => {
                self.own = Some(own);
                self.follow_ring(cx);
            }
            Outcome::Failed(why) if self.listener == Some(token) => {
                tracing::warn!(why, "FD_SOCK2 cannot listen: the other members will suspect this one");
                self.own = Some(PhysAddr { port: 0, ..cx.shared().phys });
                self.follow_ring(cx);
            }
            Outcome::Failed(_) => self.connect_failed(cx, token),
            Outcome::Accepted { conn, peer } => {
                if !self.is_connected || self.conns.len() >= CONNECTIONS_MAX {
                    cx.request(Effect::Close { conn, is_graceful: false });
                } else {
                    self.conns.insert(conn, Conn { peer, is_outgoing: false, is_watched_by_peer: false });
                }
            }
            Outcome::Connected(conn) => self.connected(cx, token, conn),
            Outcome::Frame { conn, frame } => self.frame(cx, conn, &frame),
            Outcome::Closed { conn, is_graceful } => self.closed(cx, conn, is_graceful),
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::Suspicions, self.suspicions)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("bind_addr", self.bind.map_or_else(String::new, |ip| ip.to_string()));
        out.put_all(&self.config);
        out.put("actual_bind_port", self.own.map_or(0, |own| own.port));
        out.put("ping_dest", self.neighbour.as_ref().map_or_else(String::new, ToString::to_string));
        out.put("is_watching", matches!(self.link, Link::Watching { .. }));
        out.put("num_suspect_events", self.suspicions);
        out.put("suspects", format!("{:?}", self.suspects));
    }
}

#[cfg(test)]
mod tests;
