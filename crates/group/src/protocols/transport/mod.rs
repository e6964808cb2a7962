//! The transport layer: maps members to physical addresses, and messages to packets.
//!
//! Packets leave as [`Transmit`]s and arrive through `receive`. Multicasts, and unicasts to this member, are looped
//! back here.

mod bundler;
#[cfg(test)]
mod tests;
mod tunnel;
#[cfg(test)]
mod tunnel_tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use bundler::{Bundler, Envelope, Packet, TAIL_MIN, Target};
pub use bundler::{BundlerKind, UnknownBundler};
pub use tunnel::TunnelConfig;
use tunnel::{Received, Tunnel};

use crate::config::HostPort;
use crate::wire;
use crate::{
    Address, AddressBook, Answer, Control, Cx, DropReason, Event, Flags, HeaderBody, Message, MessageBatch,
    Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, Query, RttProbe, Severity, StackCount, Time,
    TimerKey, Token, TpHeader, Transient, Transmit, TransmitDest, View, ViewId,
};

/// The configured transport. Packets' bytes are the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportKind {
    /// Datagrams, optionally with IP multicast.
    Udp,
    /// One connection per peer.
    Tcp,
    /// As TCP.
    TcpNio2,
    /// Within one process.
    SharedLoopback,
    /// Through routers.
    Tunnel,
}

impl TransportKind {
    /// Returns the configured name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::TcpNio2 => "TCP_NIO2",
            Self::SharedLoopback => "SHARED_LOOPBACK",
            Self::Tunnel => "TUNNEL",
        }
    }
}

/// The layer's configuration, without the sockets'.
#[derive(Clone, Debug)]
pub struct TransportLayerConfig {
    /// The transport.
    pub kind: TransportKind,
    /// The bundling strategy.
    pub bundler: BundlerKind,
    /// A packet's maximum bytes. 64000 leaves space for headers below UDP's limit of 65507.
    pub max_size: usize,
    /// The time between discoveries of an unknown member.
    pub who_has_cache_timeout: Duration,
    /// Whether round-trip probes are answered.
    pub rtt_enabled: bool,
    /// Whether a member is suspected when its connection breaks.
    pub enable_suspect_events: bool,
}

impl TransportLayerConfig {
    /// Returns a transport's defaults.
    pub const fn new(kind: TransportKind) -> Self {
        Self {
            kind,
            bundler: BundlerKind::PerDestination,
            max_size: 64_000,
            who_has_cache_timeout: Duration::from_secs(2),
            rtt_enabled: false,
            enable_suspect_events: false,
        }
    }
}

/// Unknown destinations cannot grow the requested members.
const WHO_HAS_MAX: usize = 1_000;

/// This is for members that a multicast skipped.
const SKIPPED_WHO_HAS_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default, Debug)]
struct Counters {
    messages_sent: u64,
    bytes_sent: u64,
    packets_sent: u64,
    messages_received: u64,
    bytes_received: u64,
    packets_received: u64,
    suspect_events: u64,
}

/// The transport layer.
pub struct Transport {
    config: TransportLayerConfig,
    bundler: Bundler,
    envelope: Option<Envelope>,
    ready: Vec<Packet>,
    asked: BTreeMap<Address, Time>,
    skipped_asked: Option<Time>,
    /// The addresses are valid for this view and change count of the book.
    fan_out: Option<(Option<ViewId>, u64, Arc<[PhysAddr]>)>,
    /// Whether this member leaves, or has left. Then the loss of a connection is no failure.
    is_leaving: bool,
    /// TUNNEL's routers.
    tunnel: Option<Tunnel>,
    counters: Counters,
}

impl Transport {
    /// Creates a transport that sends through routers.
    pub fn tunnel(config: TransportLayerConfig, tunnel: TunnelConfig, routers: Vec<HostPort>) -> Self {
        Self { tunnel: Some(Tunnel::new(tunnel, routers)), ..Self::new(config) }
    }

    /// Creates a transport that sends through an edge.
    pub fn new(config: TransportLayerConfig) -> Self {
        let tail_min = match config.kind {
            TransportKind::Tcp | TransportKind::TcpNio2 | TransportKind::Tunnel => TAIL_MIN,
            TransportKind::Udp | TransportKind::SharedLoopback => usize::MAX,
        };
        Self {
            bundler: Bundler::new(config.bundler, config.max_size, tail_min),
            config,
            envelope: None,
            ready: Vec::new(),
            asked: BTreeMap::new(),
            skipped_asked: None,
            fan_out: None,
            is_leaving: false,
            tunnel: None,
            counters: Counters::default(),
        }
    }

    fn lower(&mut self, cx: &mut Cx<'_>, mut message: Message) {
        let src = message.src.get_or_insert_with(|| cx.local().clone());
        debug_assert!(!matches!(src, Address::Ip(_)), "members have member addresses");
        let target = match &message.dest {
            None => Target::All,
            Some(dest) => match self.locate(cx, dest) {
                Location::Local => return loop_back(cx, message),
                Location::Routed => Target::Member,
                Location::Remote(phys) => Target::One(phys),
                Location::Unknown => return cx.discard(&message, DropReason::UnknownAddress),
            },
        };
        let Some(envelope) = &self.envelope else {
            return cx.discard(&message, DropReason::WrongCluster);
        };
        self.counters.messages_sent += 1;
        let is_looped = message.is_multicast() && !message.transient.has(Transient::DONT_LOOPBACK);
        if !is_looped {
            self.bundler.add(envelope, target, Cow::Owned(message), &mut self.ready);
            return self.transmit(cx);
        }
        self.bundler.add(envelope, target, Cow::Borrowed(&message), &mut self.ready);
        self.transmit(cx);
        loop_back(cx, message);
    }

    fn locate(&mut self, cx: &mut Cx<'_>, dest: &Address) -> Location {
        if cx.is_local(dest) {
            return Location::Local;
        }
        if self.tunnel.is_some() && !matches!(dest, Address::Ip(_)) {
            return Location::Routed;
        }
        let phys = match dest {
            // Routers know members, not physical addresses.
            Address::Ip(ip) if self.tunnel.is_some() && *ip != cx.shared().phys => return Location::Unknown,
            Address::Ip(ip) => Some(*ip),
            member => cx.shared().book.phys(member),
        };
        match phys {
            Some(phys) if phys == cx.shared().phys => Location::Local,
            Some(phys) => Location::Remote(phys),
            None => {
                self.request_address(cx, dest);
                Location::Unknown
            }
        }
    }

    fn request_address(&mut self, cx: &mut Cx<'_>, member: &Address) {
        let (now, timeout) = (cx.now(), self.config.who_has_cache_timeout);
        self.asked.retain(|_, at| now.since(*at) < timeout);
        if self.asked.len() < WHO_HAS_MAX && !self.asked.contains_key(member) {
            self.asked.insert(member.clone(), now);
            cx.raise(Event::WhoHas(vec![member.clone()]));
        }
    }

    fn transmit(&mut self, cx: &mut Cx<'_>) {
        if self.ready.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.ready);
        for packet in ready.drain(..) {
            if let Some(tunnel) = &mut self.tunnel {
                self.counters.packets_sent += 1;
                self.counters.bytes_sent += (packet.bytes.len() + packet.tail.len()) as u64;
                tunnel.send(cx, packet);
                continue;
            }
            let dest = match packet.to {
                Target::One(phys) => TransmitDest::One(phys),
                // Only a tunnel has such packets.
                Target::Member => continue,
                Target::All if cx.shared().has_multicast => TransmitDest::Multicast,
                Target::All => TransmitDest::Many(self.other_addresses(cx)),
            };
            self.counters.packets_sent += 1;
            self.counters.bytes_sent += (packet.bytes.len() + packet.tail.len()) as u64;
            if !matches!(&dest, TransmitDest::Many(others) if others.is_empty()) {
                cx.transmit(Transmit {
                    dest,
                    bytes: packet.bytes,
                    tail: packet.tail,
                    priority: packet.priority,
                });
            }
        }
        self.ready = ready;
    }

    /// Before the first view these are all members in the book.
    fn other_addresses(&mut self, cx: &mut Cx<'_>) -> Arc<[PhysAddr]> {
        let shared = cx.shared();
        let (view_id, changes) = (shared.view.as_ref().map(|view| view.id().clone()), shared.book.changes());
        if let Some((id, at, others)) = &self.fan_out
            && *id == view_id
            && *at == changes
        {
            return others.clone();
        }
        let mut unknown = Vec::new();
        let others: Arc<[PhysAddr]> = match &shared.view {
            Some(view) => view
                .members()
                .iter()
                .filter(|member| **member != shared.local)
                .filter_map(|member| {
                    let phys = shared.book.phys(member);
                    if phys.is_none() {
                        unknown.push(member.clone());
                    }
                    phys
                })
                .collect(),
            None => shared
                .book
                .iter()
                .filter_map(|(_, _, phys)| phys)
                .filter(|phys| *phys != shared.phys)
                .collect(),
        };
        if unknown.is_empty() {
            self.fan_out = Some((view_id, changes, others.clone()));
        } else if self.skipped_asked.is_none_or(|at| cx.now().since(at) >= SKIPPED_WHO_HAS_INTERVAL) {
            self.skipped_asked = Some(cx.now());
            cx.raise(Event::WhoHas(unknown));
        }
        others
    }

    fn accept_single(&mut self, cx: &mut Cx<'_>, mut message: Message) {
        if let Some(HeaderBody::Tp(tp)) = message.headers.take(ProtocolId::TP) {
            if tp.cluster.as_deref() != cx.shared().cluster.as_deref() {
                return cx.count_drop(DropReason::WrongCluster, |_| {
                    format!("message for cluster {:?}", tp.cluster)
                });
            }
            if let Some(probe) = tp.rtt {
                return self.answer_rtt(cx, &message, probe);
            }
        }
        cx.deliver(message);
    }

    fn answer_rtt(&mut self, cx: &mut Cx<'_>, message: &Message, probe: RttProbe) {
        if probe.is_response || !self.config.rtt_enabled {
            return;
        }
        let rtt = Some(RttProbe { is_response: true, index: probe.index });
        let header = TpHeader { cluster: cx.shared().cluster.clone(), rtt };
        let answer = Message::empty(message.src.clone())
            .with_flags(Flags::OOB)
            .with_header(ProtocolId::TP, HeaderBody::Tp(Box::new(header)));
        self.lower(cx, answer);
    }

    fn accept_list(&mut self, cx: &mut Cx<'_>, messages: Vec<Message>) {
        if messages.iter().any(Message::is_oob) {
            let (oob, regular): (Vec<_>, Vec<_>) = messages.into_iter().partition(Message::is_oob);
            deliver_by_source(cx, oob);
            deliver_by_source(cx, regular);
        } else {
            deliver_by_source(cx, messages);
        }
    }

    /// After a restart senders do not know yet that the previous process here is gone. A packet for a current member
    /// at another address was misaddressed.
    fn discard_misaddressed(cx: &mut Cx<'_>, what: &str, dest: Option<&Address>, from: PhysAddr) {
        let shared = cx.shared();
        let is_elsewhere = |member: &Address| {
            let is_member = shared.view.as_ref().is_some_and(|view| view.contains(member));
            is_member && shared.book.phys(member) != Some(shared.phys)
        };
        let severity = match dest {
            Some(member) if !is_elsewhere(member) => Severity::Expected,
            _ => Severity::Unexpected,
        };
        cx.count_drop_of(DropReason::WrongDestination, severity, |book| {
            format!("{what} for {} from {from}", named(book, dest))
        });
    }

    fn is_for_this_member(&self, cx: &Cx<'_>, is_multicast: bool, dest: Option<&Address>) -> bool {
        match dest {
            None => is_multicast,
            Some(Address::Ip(ip)) => *ip == cx.shared().phys,
            Some(member) => cx.is_local(member),
        }
    }
}

enum Location {
    Local,
    /// A router knows the member.
    Routed,
    Remote(PhysAddr),
    Unknown,
}

fn named(book: &AddressBook, dest: Option<&Address>) -> String {
    dest.map_or_else(|| "all members".to_owned(), |dest| book.member(dest).to_string())
}

fn loop_back(cx: &mut Cx<'_>, mut message: Message) {
    message.transient |= Transient::LOOPED_BACK;
    cx.deliver(message);
}

fn deliver_by_source(cx: &mut Cx<'_>, mut messages: Vec<Message>) {
    for message in &mut messages {
        // The header repeats the cluster, which was compared already.
        message.headers.take(ProtocolId::TP);
    }
    if messages.windows(2).all(|pair| pair[0].src == pair[1].src) {
        cx.deliver_batch(MessageBatch { messages });
    } else {
        messages.into_iter().for_each(|message| cx.deliver(message));
    }
}

impl Protocol for Transport {
    fn name(&self) -> &'static str {
        self.config.kind.name()
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::TP
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in batch.messages.drain(..) {
            self.lower(cx, message);
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Connect => {
                self.is_leaving = false;
                if let Some(cluster) = cx.shared().cluster.as_deref() {
                    let (version, tp) = (cx.shared().version, wire::encode_tp(cluster));
                    self.envelope = Some(Envelope { version, cluster: cluster.to_owned(), tp });
                }
                if let Some(tunnel) = &mut self.tunnel {
                    tunnel.connect(cx);
                }
            }
            Event::Disconnect => {
                self.is_leaving = true;
                if self.tunnel.is_some() {
                    // The last messages go out before the registrations end.
                    self.flush(cx);
                }
                if let Some(tunnel) = &mut self.tunnel {
                    tunnel.disconnect(cx);
                }
            }
            _ => {}
        }
        Pass::Stop
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            let now = cx.now();
            let mut keep = view.members().to_vec();
            keep.push(cx.local().clone());
            cx.book().retain_members(now, &keep);
            if let Some(tunnel) = &mut self.tunnel {
                tunnel.view_changed(cx);
            }
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.timer(cx, key);
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let received = self.tunnel.as_mut().and_then(|tunnel| tunnel.done(cx, token, outcome));
        match received {
            Some(Received::Packet(router, packet)) => self.receive(cx, router, packet),
            Some(Received::Members(data)) => {
                let local = cx.local().clone();
                for member in data.members.iter().filter(|member| member.sender != local) {
                    cx.book().learn(&member.sender, member.name.as_deref(), member.phys);
                }
            }
            Some(Received::Suspect(member)) if !self.is_leaving && !cx.is_local(&member) => {
                tracing::debug!(%member, "suspected: its connection to the router has ended");
                self.counters.suspect_events += 1;
                cx.raise(Event::Suspect(vec![member]));
            }
            _ => {}
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, from: PhysAddr, packet: Bytes) {
        if from == cx.shared().phys {
            return cx.count_drop(DropReason::OwnPacket, |_| {
                format!("packet from this member's own address {from}")
            });
        }
        let Some(version) = wire::peek_version(&packet) else {
            return cx.count_drop(DropReason::Malformed, |_| format!("{} bytes from {from}", packet.len()));
        };
        if !version.is_compatible(cx.shared().version) {
            return cx.count_drop(DropReason::WrongVersion, |_| {
                format!("packet of version {version} from {from}")
            });
        }
        let Some(envelope) = &self.envelope else {
            // Members may still send to the previous process at this address.
            return cx.count_drop_of(DropReason::WrongCluster, Severity::Expected, |_| {
                format!("not connected; packet from {from}")
            });
        };
        self.counters.packets_received += 1;
        self.counters.bytes_received += packet.len() as u64;
        match wire::decode_packet(&packet, &envelope.tp) {
            Ok(wire::Packet::Single { is_multicast, message, .. }) => {
                if !self.is_for_this_member(cx, is_multicast, message.dest.as_ref()) {
                    return Self::discard_misaddressed(cx, "message", message.dest.as_ref(), from);
                }
                self.counters.messages_received += 1;
                self.accept_single(cx, message);
            }
            Ok(wire::Packet::List { is_multicast, dest, cluster, messages, .. }) => {
                if !self.is_for_this_member(cx, is_multicast, dest.as_ref()) {
                    return Self::discard_misaddressed(cx, "list", dest.as_ref(), from);
                }
                if cluster.as_deref() != cx.shared().cluster.as_deref() {
                    return cx.count_drop(DropReason::WrongCluster, |_| {
                        format!("list for cluster {cluster:?} from {from}")
                    });
                }
                self.counters.messages_received += messages.len() as u64;
                self.accept_list(cx, messages);
            }
            Err(error) => cx.count_drop(DropReason::Malformed, |_| format!("packet from {from}: {error}")),
        }
    }

    /// JGroups' `enable_suspect_events`. A layer above verifies the suspicion.
    fn peer_lost(&mut self, cx: &mut Cx<'_>, peer: PhysAddr, is_end_of_stream: bool) {
        if self.is_leaving {
            return;
        }
        let shared = cx.shared();
        let members = shared.view.iter().flat_map(View::members);
        // After a restart the predecessor may still be a member.
        let lost = members
            .filter(|member| !cx.is_local(member) && shared.book.phys(member) == Some(peer))
            .cloned()
            .collect::<Vec<_>>();
        if lost.is_empty() {
            return;
        }
        if is_end_of_stream {
            cx.raise(Event::StreamEnded(lost.clone()));
        }
        if self.config.enable_suspect_events {
            tracing::debug!(members = ?cx.shared().book.members(&lost), %peer, "suspected: the connection broke");
            self.counters.suspect_events += 1;
            cx.raise(Event::Suspect(lost));
        }
    }

    fn flushes(&self) -> bool {
        true
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        let has_tcp_port = matches!(self.config.kind, TransportKind::Tcp | TransportKind::TcpNio2);
        matches!(query, Query::HasTcpPort).then_some(Answer::Yes(has_tcp_port))
    }

    fn flush(&mut self, cx: &mut Cx<'_>) {
        if let Some(envelope) = &self.envelope {
            self.bundler.flush(envelope, &mut self.ready);
            self.transmit(cx);
        }
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("bundler.type", self.bundler.kind.name());
        out.put("bundler.max_size", self.bundler.max_size);
        out.put("who_has_cache_timeout", format!("{}ms", self.config.who_has_cache_timeout.as_millis()));
        out.put("enable_suspect_events", self.config.enable_suspect_events);
        out.put("num_suspect_events", self.counters.suspect_events);
        out.put("num_msgs_sent", self.counters.messages_sent);
        out.put("num_bytes_sent", self.counters.bytes_sent);
        out.put("num_packets_sent", self.counters.packets_sent);
        out.put("num_msgs_received", self.counters.messages_received);
        out.put("num_bytes_received", self.counters.bytes_received);
        out.put("num_packets_received", self.counters.packets_received);
        if let Some(tunnel) = &self.tunnel {
            tunnel.probe(out);
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        self.tunnel.as_ref().map(Tunnel::counts).unwrap_or_default()
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        match name {
            "bundler" | "bundler_type" | "bundler.type" => Some(
                value
                    .parse()
                    .map(|kind| self.bundler.kind = kind)
                    .map_err(|error: UnknownBundler| error.to_string()),
            ),
            _ => None,
        }
    }

    fn operations(&self) -> &'static [&'static str] {
        &["bundler"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, args: &[&str]) -> Option<Result<String, String>> {
        if name != "bundler" {
            return None;
        }
        // Collected messages leave under the old bundler before any under the new one.
        self.flush(cx);
        let kind = args.first().copied().unwrap_or_default();
        Some(self.set_attribute("bundler", kind)?.map(|()| self.bundler.kind.name().to_owned()))
    }
}
