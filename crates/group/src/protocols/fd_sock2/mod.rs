//! FD_SOCK2: every member holds a connection to the next one in the view; when it breaks, that one is suspected
//! (facts 14.1).
//!
//! The connections are apart from the transport's. A crash closes them at once, so it is noticed within milliseconds;
//! a host that vanishes without a word is left to FD_ALL3.

mod ring;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ring::Link;

use super::fd_all3::would_lead;
use crate::wire;
use crate::{
    Address, ConnId, Control, Cx, DropReason, Effect, Event, FdSock2Header, HeaderBody, Message,
    MessageBatch, Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, TimerKey, Token, Transient,
};

crate::properties! {
    /// FD_SOCK2's properties.
    FdSock2Config {
        /// The address to listen on; all addresses if not set.
        bind_addr: Option<String> = None,
        /// Added to the transport's port, it gives the first port to listen on.
        offset: u16 = 100,
        /// How many ports after the first are tried, here and at the neighbour.
        port_range: u16 = 3,
        /// Ports below this one get 1024 added.
        min_port: u16 = 1024,
        /// How long a neighbour may take for the connection, and for the answer on it.
        connect_timeout: Duration = Duration::from_secs(1),
        /// How often a suspicion is told again while the suspect is a member.
        suspect_msg_interval: Duration = Duration::from_secs(5),
    }
}

/// Connections that may be open: each member has at most one to and one from every other. Beyond any view that works.
const CONNECTIONS_MAX: usize = 2_000;

const ANSWER: TimerKey = TimerKey(1);
const TELL: TimerKey = TimerKey(2);
const RETRY: TimerKey = TimerKey(3);

/// A connection that stands.
struct Conn {
    /// The listener's address in its set-up bytes, or the one we connected to.
    peer: PhysAddr,
    /// Whether the peer watches us through it.
    is_watched_by_peer: bool,
}

/// The protocol.
pub struct FdSock2 {
    config: FdSock2Config,
    is_connected: bool,
    own: Option<PhysAddr>,
    conns: BTreeMap<ConnId, Conn>,
    neighbour: Option<Address>,
    link: Link,
    suspects: BTreeSet<Address>,
    suspicions: u64,
}

impl FdSock2 {
    /// The protocol before it listens.
    pub fn new(config: FdSock2Config) -> Self {
        Self {
            config,
            is_connected: false,
            own: None,
            conns: BTreeMap::new(),
            neighbour: None,
            link: Link::None,
            suspects: BTreeSet::new(),
            suspicions: 0,
        }
    }

    /// The ports on which a member whose transport has this port may listen.
    fn ports(&self, transport_port: u16) -> Vec<u16> {
        (0..=self.config.port_range)
            .map(|nth| {
                let port = transport_port.wrapping_add(self.config.offset).wrapping_add(nth);
                if port < self.config.min_port { port.wrapping_add(1024) } else { port }
            })
            .collect()
    }

    fn listen(&mut self, cx: &mut Cx<'_>) {
        if std::mem::replace(&mut self.is_connected, true) {
            return;
        }
        let ports = self.ports(cx.shared().phys.port);
        let bind = self.config.bind_addr.as_deref().and_then(|text| text.parse().ok());
        cx.request(Effect::Listen { bind, ports });
    }

    fn close_all(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::take(&mut self.is_connected) {
            return;
        }
        cx.request(Effect::CloseListener);
        for conn in std::mem::take(&mut self.conns).into_keys() {
            cx.request(Effect::Close { conn, is_graceful: true });
        }
        for key in [ANSWER, TELL, RETRY] {
            cx.disarm(key);
        }
        self.own = None;
        self.neighbour = None;
        self.link = Link::None;
        self.suspects.clear();
    }

    /// A frame on one of our connections is the body of an empty message with our header.
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
            self.conns.remove(&conn);
            cx.request(Effect::Close { conn, is_graceful: false });
            return cx.count_drop(DropReason::Malformed, || "frame on a failure detection socket".to_owned());
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
                let is_ours = cluster.as_deref() == cx.shared().cluster.as_deref();
                self.answered(cx, conn, is_ours.then_some(server));
            }
            _ => {}
        }
    }

    /// Suspicions are multicast without reliability and repeated instead.
    fn tell(&self, cx: &mut Cx<'_>, header: FdSock2Header) {
        let mut message =
            Message::empty(None).with_header(ProtocolId::FD_SOCK2, HeaderBody::FdSock2(Box::new(header)));
        message.transient |= Transient::DONT_LOOPBACK;
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn suspect(&mut self, cx: &mut Cx<'_>, member: Address) {
        self.suspicions += 1;
        tracing::debug!(%member, "the connection to it broke");
        self.suspects.insert(member);
        self.tell_suspects(cx);
        self.raise_suspects(cx);
    }

    fn tell_suspects(&self, cx: &mut Cx<'_>) {
        if self.suspects.is_empty() {
            return cx.disarm(TELL);
        }
        self.tell(cx, FdSock2Header::Suspect(self.suspects.iter().cloned().collect()));
        cx.arm(TELL, self.config.suspect_msg_interval);
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
                let news = members.into_iter().filter(|member| view.contains(member) && *member != local);
                self.suspects.extend(news);
                self.raise_suspects(cx);
                self.follow_ring(cx);
            }
            FdSock2Header::Unsuspect(members) => self.unsuspect(cx, &members),
            // These belong on sockets.
            _ => cx.count_drop(DropReason::Unexpected, || "FD_SOCK2 connect in a message".to_owned()),
        }
    }

    fn unsuspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        self.suspects.retain(|member| !members.contains(member));
        if self.suspects.is_empty() {
            cx.disarm(TELL);
        }
        self.follow_ring(cx);
    }
}

impl Protocol for FdSock2 {
    fn name(&self) -> &'static str {
        "FD_SOCK2"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::FD_SOCK2
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
                    self.tell(cx, FdSock2Header::Unsuspect(members.clone()));
                }
                self.unsuspect(cx, members);
            }
            _ => {}
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.suspects.retain(|member| view.contains(member));
            if self.suspects.is_empty() {
                cx.disarm(TELL);
            }
            self.follow_ring(cx);
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.close_all(cx);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            ANSWER => self.no_answer(cx),
            TELL => self.tell_suspects(cx),
            _ => self.follow_ring(cx),
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        match outcome {
            Outcome::Listening(own) => {
                self.own = Some(own);
                self.follow_ring(cx);
            }
            Outcome::Failed(why) => {
                let is_ours = self.connect_failed(cx, token);
                if !is_ours && self.own.is_none() && self.is_connected {
                    tracing::warn!(why, "FD_SOCK2 cannot listen: the other members will suspect this one");
                    self.own = Some(PhysAddr { port: 0, ..cx.shared().phys });
                    self.follow_ring(cx);
                }
            }
            Outcome::Accepted { conn, peer } => {
                if !self.is_connected || self.conns.len() >= CONNECTIONS_MAX {
                    cx.request(Effect::Close { conn, is_graceful: false });
                } else {
                    self.conns.insert(conn, Conn { peer, is_watched_by_peer: false });
                }
            }
            Outcome::Connected(conn) => self.connected(cx, token, conn),
            Outcome::Frame { conn, frame } => self.frame(cx, conn, &frame),
            Outcome::Closed { conn, .. } => self.closed(cx, conn),
            _ => {}
        }
    }

    fn probe(&self, out: &mut ProbeOut) {
        for (name, value) in crate::config::Properties::show(&self.config) {
            out.put(name, value);
        }
        out.put("actual_bind_port", self.own.map_or(0, |own| own.port));
        out.put("ping_dest", self.neighbour.as_ref().map_or_else(String::new, ToString::to_string));
        out.put("is_watching", matches!(self.link, Link::Watching { .. }));
        out.put("num_suspect_events", self.suspicions);
        out.put("suspects", format!("{:?}", self.suspects));
    }
}

#[cfg(test)]
mod tests;
