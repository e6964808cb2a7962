//! FD_SOCK2: every member connects to the next member in the view and suspects it when the connection breaks.
//!
//! A crash closes these connections, separate from the transport's, within milliseconds. FD_ALL3 detects a host that
//! vanishes without closing them.
//!
//! A graceful close proves no crash: members close so when they leave, and when two connected to each other at once.
//! If the member is still in the view shortly after, this member reconnects and suspects it only if that fails.

mod proof;
mod ring;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use proof::{PROBE, Proofs};
use ring::Link;

use super::ended_streams::marked;
use super::socket_ring::{EXPIRE, REPORT, ReportHeaders, SocketRing};
use crate::wire;
use crate::{
    Address, ConnId, Control, Cx, DropReason, Effect, Event, ExternalAddress, FdSock2Header, HeaderBody,
    HeaderIds, Message, MessageBatch, Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, StackCount,
    TimerKey, Token,
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
        /// After how many refused connections in a row, to each known port of a suspect whose connection has ended,
        /// its crash is proven, so that no further verification is awaited. 0 = never. JGroups does not know this
        /// attribute.
        num_refused_probes: u32 = 3,
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
        super::socket_ring::check_client_port(self.client_bind_port)
    }
}

/// Each member has at most one to and one from every other, so no working view exceeds it.
const CONNECTIONS_MAX: usize = 2_000;

const ANSWER: TimerKey = TimerKey(1);

fn header(header: FdSock2Header) -> HeaderBody {
    HeaderBody::FdSock2(Box::new(header))
}

const REPORTS: ReportHeaders = ReportHeaders {
    id: ProtocolId::FD_SOCK2,
    suspect: |members| header(FdSock2Header::Suspect(members)),
    unsuspect: |members| header(FdSock2Header::Unsuspect(members)),
};

struct Conn {
    /// The listener's address, or the address connected to.
    peer: PhysAddr,
    is_outgoing: bool,
    is_watched_by_peer: bool,
    /// It has named itself.
    member: Option<Address>,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    InOrder,
    /// As when a process dies.
    EndOfStream,
    Broken,
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
    /// Connections in a row that ended in order before the neighbour named itself.
    replaced: u32,
    ring: SocketRing,
    proofs: Proofs,
}

impl FdSock2 {
    /// Creates a layer that listens on all addresses.
    pub fn new(config: FdSock2Config) -> Self {
        Self {
            ring: SocketRing::new(REPORTS, config.suspect_msg_interval),
            config,
            bind: None,
            is_connected: false,
            listener: None,
            own: None,
            conns: BTreeMap::new(),
            neighbour: None,
            link: Link::None,
            replaced: 0,
            proofs: Proofs::default(),
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
        cx.disarm(ANSWER);
        cx.disarm(PROBE);
        self.proofs.clear();
        self.listener = None;
        self.own = None;
        self.neighbour = None;
        self.link = Link::None;
        self.ring.clear(cx);
    }

    fn write(&self, cx: &mut Cx<'_>, conn: ConnId, content: FdSock2Header) {
        let mut message = Message::empty(None).with_header(ProtocolId::FD_SOCK2, header(content));
        message.src = Some(cx.local().clone());
        cx.request(Effect::Write { conn, frame: wire::encode_body(&message) });
    }

    fn frame(&mut self, cx: &mut Cx<'_>, conn: ConnId, frame: &bytes::Bytes) {
        let empty = wire::message_type(&crate::Payload::Empty);
        let decoded = wire::decode_body(empty, frame)
            .map(|mut message| (message.headers.take(ProtocolId::FD_SOCK2), message.src));
        let Ok((Some(HeaderBody::FdSock2(header)), src)) = decoded else {
            cx.request(Effect::Close { conn, is_graceful: false });
            // The edge reports no close for connections that this member closes, so the watch ends here.
            self.closed(cx, conn, Ending::Broken);
            return cx
                .count_drop(DropReason::Malformed, |_| "frame on a failure detection socket".to_owned());
        };
        match *header {
            FdSock2Header::Connect(_) => {
                if let Some(known) = self.conns.get_mut(&conn) {
                    known.is_watched_by_peer = true;
                    known.member = src;
                }
                let cluster = cx.shared().cluster.as_deref().map(str::to_owned);
                let server = cx.local().clone();
                self.write(cx, conn, FdSock2Header::ConnectResponse { cluster, server });
            }
            FdSock2Header::ConnectResponse { cluster, server } => {
                let is_same_cluster = cluster.as_deref() == cx.shared().cluster.as_deref();
                if let Some(known) = self.conns.get_mut(&conn) {
                    known.member = is_same_cluster.then(|| server.clone());
                }
                self.answered(cx, conn, is_same_cluster.then_some(server));
            }
            _ => {}
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: FdSock2Header, message: &Message) {
        cx.absorb(message);
        if cx.view().is_none() {
            return;
        }
        match header {
            FdSock2Header::Suspect(members) => {
                self.note_marked(cx, &members, message);
                self.ring.receive_suspects(cx, members);
                self.prove(cx);
            }
            FdSock2Header::Unsuspect(members) => {
                self.ring.withdraw(cx, members);
                self.follow_ring(cx);
            }
            // Valid on sockets only.
            _ => cx.count_drop(DropReason::Unexpected, |_| "FD_SOCK2 connect in a message".to_owned()),
        }
    }

    fn note_marked(&mut self, cx: &Cx<'_>, members: &[Address], message: &Message) {
        let view = cx.view();
        for member in marked(members, message.payload_bytes()) {
            if view.is_some_and(|view| view.contains(member)) && !cx.is_local(member) {
                self.ring.ended.note(cx.now(), member.clone(), None);
            }
        }
    }

    fn unsuspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        self.ring.unsuspect(cx, members);
        self.proofs.retain(|member| !members.contains(member));
        members.iter().for_each(|member| self.ring.ended.forget(member));
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

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id()) || !self.proofs.is_idle()
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if let Some(src) = batch.src() {
            self.proofs.heard(src);
        }
        batch.messages.retain_mut(|message| match message.headers.take(ProtocolId::FD_SOCK2) {
            Some(HeaderBody::FdSock2(header)) => {
                self.receive(cx, *header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Unsuspect(members) => self.unsuspect(cx, members),
            Event::StreamEnded(members) => {
                for member in members {
                    self.ring.ended.note(cx.now(), member.clone(), None);
                }
                self.prove(cx);
                return Pass::Stop;
            }
            _ => {}
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Connect => self.listen(cx),
            Event::Disconnect => self.close_all(cx),
            Event::Unsuspect(members) => {
                self.ring.report_alive(cx, members);
                self.unsuspect(cx, members);
            }
            _ => {}
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(_) = control {
            self.ring.retain_members(cx);
            if let Some(view) = cx.view() {
                self.proofs.retain(|member| view.contains(member));
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
            PROBE => self.probe_ports(cx),
            REPORT => self.ring.report_suspects(cx),
            EXPIRE => self.ring.expire_received(cx),
            _ => self.follow_ring(cx),
        }
        self.prove(cx);
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
                    self.conns.insert(
                        conn,
                        Conn { peer, is_outgoing: false, is_watched_by_peer: false, member: None },
                    );
                }
            }
            Outcome::Connected(conn) => self.connected(cx, token, conn),
            Outcome::Frame { conn, frame } => self.frame(cx, conn, &frame),
            Outcome::Closed { conn, is_graceful: true, .. } => self.closed(cx, conn, Ending::InOrder),
            Outcome::Closed { conn, is_reset: true, .. } => self.closed(cx, conn, Ending::Broken),
            Outcome::Closed { conn, .. } => self.closed(cx, conn, Ending::EndOfStream),
            Outcome::Port(state) => self.probed(cx, token, state),
            _ => {}
        }
        // The suspicion, or the end of the connection, may have come first.
        self.prove(cx);
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![
            (StackCount::Suspicions, self.ring.suspicions()),
            (StackCount::ProvenCrashes, self.proofs.proven()),
        ]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("bind_addr", self.bind.map_or_else(String::new, |ip| ip.to_string()));
        out.put_all(&self.config);
        out.put("actual_bind_port", self.own.map_or(0, |own| own.port));
        out.put("ping_dest", self.neighbour.as_ref().map_or_else(String::new, ToString::to_string));
        out.put("is_watching", matches!(self.link, Link::Watching { .. }));
        self.ring.probe(out);
        out.put("num_proven_crashes", self.proofs.proven());
    }
}

#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod tests;
