//! FD_SOCK: every member connects to the server socket of the next member in the view, and suspects that member when
//! the connection ends without the byte of a graceful end.
//!
//! FD_SOCK2 has replaced it: there the port of a server socket follows from the transport's. Here each member tells
//! the others the address of its socket, and a joiner asks the coordinator for all addresses.
//!
//! Nothing goes over the connections but the byte `GRACEFUL_END`, which either side writes before it closes. A member
//! that has written it and is still in the view shortly after is connected to again, and suspected only if that fails.
//! (JGroups does not watch it until the next view.)

mod addresses;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use addresses::SocketAddresses;
use watch::Watch;

use super::socket_ring::{EXPIRE, REPORT, ReportHeaders, SocketRing};
use crate::wire;
use crate::{
    ConnId, Control, Cx, DropReason, Effect, Event, ExternalAddress, FdSockHeader, HeaderBody, HeaderIds,
    Message, MessageBatch, Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, StackCount,
    StreamOptions, TimerKey, Token,
};

crate::properties! {
    /// FD_SOCK's properties.
    FdSockConfig {
        /// The address to advertise instead of the bound one (behind address translation).
        external_addr: Option<IpAddr> = None,
        /// The port to advertise with `external_addr`; 0 = the bound one.
        external_port: u16 = 0,
        /// The port to connect from. Any value other than 0 (any port) is refused, because connections to
        /// several members cannot share it.
        client_bind_port: u16 = 0,
        /// The first port to listen on; 0 = any port.
        start_port: u16 = 0,
        /// How many further ports are tried if `start_port` is in use.
        port_range: u16 = 50,
        /// Whether the system probes the connections, which are idle.
        keep_alive: bool = true,
        /// The time to wait for the coordinator's response with the addresses of all server sockets.
        get_cache_timeout: Duration = Duration::from_secs(1),
        /// How often the coordinator is asked for them.
        num_tries: u32 = 3,
        /// The limit for connecting to a neighbour.
        sock_conn_timeout: Duration = Duration::from_secs(1),
        /// The time between repetitions of a suspicion while the suspect is a member. All members must use
        /// the same value: a member forgets a received suspicion that is not repeated within three of its own
        /// intervals.
        suspect_msg_interval: Duration = Duration::from_secs(5),
    }
}

impl FdSockConfig {
    /// Checks that connections are possible.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.sock_conn_timeout.is_zero() {
            let why = "sock_conn_timeout has to be longer than 0: no connection is that fast";
            return Err(("sock_conn_timeout", why.to_owned()));
        }
        super::socket_ring::check_client_port(self.client_bind_port)
    }

    fn options(&self) -> StreamOptions {
        StreamOptions { keep_alive: self.keep_alive, ..StreamOptions::default() }
    }
}

/// Written before a graceful close.
const GRACEFUL_END: u8 = 9;

/// Each member has at most one to every other, so no working view exceeds it.
const CONNECTIONS_MAX: usize = 2_000;

const LOOK_UP: TimerKey = TimerKey(1);
const CACHE: TimerKey = TimerKey(5);

fn header(header: FdSockHeader) -> HeaderBody {
    HeaderBody::FdSock(Box::new(header))
}

const REPORTS: ReportHeaders = ReportHeaders {
    id: ProtocolId::FD_SOCK,
    suspect: |members| header(FdSockHeader::Suspect(members)),
    unsuspect: |members| header(FdSockHeader::Unsuspect(members)),
};

/// The FD_SOCK layer.
pub struct FdSock {
    config: FdSockConfig,
    /// `None` is the transport's address.
    bind: Option<IpAddr>,
    is_connected: bool,
    listener: Option<Token>,
    /// The port is 0 if there is no server socket.
    own: Option<PhysAddr>,
    /// Members that watch this one, with the addresses they connect from.
    watchers: BTreeMap<ConnId, PhysAddr>,
    addresses: SocketAddresses,
    watch: Watch,
    ring: SocketRing,
}

impl FdSock {
    /// Creates a layer that listens on the transport's address.
    pub fn new(config: FdSockConfig) -> Self {
        Self {
            ring: SocketRing::new(REPORTS, config.suspect_msg_interval),
            addresses: SocketAddresses::new(config.num_tries),
            config,
            bind: None,
            is_connected: false,
            listener: None,
            own: None,
            watchers: BTreeMap::new(),
            watch: Watch::default(),
        }
    }

    /// Sets the address to listen on; absent: the transport's.
    #[must_use]
    pub fn bound_to(self, bind: Option<IpAddr>) -> Self {
        Self { bind, ..self }
    }

    fn listen(&mut self, cx: &mut Cx<'_>) {
        if std::mem::replace(&mut self.is_connected, true) {
            return;
        }
        let FdSockConfig { external_addr, external_port, start_port, port_range, .. } = self.config;
        let last = if start_port == 0 { 0 } else { start_port.saturating_add(port_range) };
        self.listener = Some(cx.request(Effect::ListenStreams {
            bind: self.bind,
            ports: (start_port..=last).collect(),
            external: ExternalAddress::configured(external_addr, external_port),
            options: self.config.options(),
        }));
    }

    fn close_all(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::take(&mut self.is_connected) {
            return;
        }
        cx.request(Effect::CloseListener);
        self.stop_watching(cx);
        for conn in std::mem::take(&mut self.watchers).into_keys() {
            close_gracefully(cx, conn);
        }
        cx.disarm(CACHE);
        self.listener = None;
        self.own = None;
        self.watch = Watch::default();
        self.addresses = SocketAddresses::new(self.config.num_tries);
        self.ring.clear(cx);
    }

    fn send(&self, cx: &mut Cx<'_>, dest: &crate::Address, content: FdSockHeader) {
        let mut message =
            Message::empty(Some(dest.clone())).with_header(ProtocolId::FD_SOCK, header(content));
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    /// The member watches its neighbour once it knows the addresses of the coordinator, or waits no longer for them.
    fn begin(&mut self, cx: &mut Cx<'_>) {
        let Some(own) = self.own else { return };
        if cx.view().is_none_or(|view| view.members().len() < 2) {
            return self.follow_ring(cx);
        }
        if own.port != 0 && !std::mem::replace(&mut self.addresses.is_announced, true) {
            let member = cx.local().clone();
            self.ring.multicast(cx, header(FdSockHeader::IHaveSock { member, address: own }));
        }
        if cx.is_coordinator() {
            self.addresses.tries_left = 0;
            cx.disarm(CACHE);
        }
        if cx.is_armed(CACHE) {
            return;
        }
        self.ask_coordinator(cx);
    }

    fn ask_coordinator(&mut self, cx: &mut Cx<'_>) {
        let coordinator = cx.view().and_then(|view| view.coordinator()).cloned();
        match coordinator {
            Some(coordinator) if self.addresses.tries_left > 0 => {
                self.addresses.tries_left -= 1;
                self.send(cx, &coordinator, FdSockHeader::GetCache);
                cx.arm(CACHE, self.config.get_cache_timeout);
            }
            _ => {
                cx.disarm(CACHE);
                self.follow_ring(cx);
            }
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, content: FdSockHeader, message: &Message) {
        cx.absorb(message);
        let Some(src) = message.src.clone().filter(|src| !cx.is_local(src)) else { return };
        match content {
            FdSockHeader::Suspect(members) => self.ring.receive_suspects(cx, members),
            FdSockHeader::Unsuspect(members) => {
                self.ring.withdraw(cx, members);
                self.follow_ring(cx);
            }
            FdSockHeader::WhoHasSock(member) => {
                if let Some(address) = self.addresses.get(&member) {
                    self.send(cx, &src, FdSockHeader::IHaveSock { member, address });
                }
            }
            FdSockHeader::IHaveSock { member, address } => {
                if !cx.is_local(&member) {
                    self.addresses.learn(cx, [(member, address)]);
                    self.address_learned(cx);
                }
            }
            FdSockHeader::GetCache => {
                let mut answer = Message::bytes(Some(src), self.addresses.encode())
                    .with_header(ProtocolId::FD_SOCK, header(FdSockHeader::GetCacheResponse));
                answer.src = Some(cx.local().clone());
                cx.send(answer);
            }
            FdSockHeader::GetCacheResponse => self.receive_cache(cx, message),
        }
    }

    fn receive_cache(&mut self, cx: &mut Cx<'_>, message: &Message) {
        let decoded = message.payload_bytes().map(wire::decode_socket_addresses);
        let Some(Ok(mut all)) = decoded else {
            return cx.count_drop(DropReason::Malformed, |_| "addresses of server sockets".to_owned());
        };
        all.retain(|(member, _)| !cx.is_local(member));
        self.addresses.learn(cx, all);
        if cx.is_armed(CACHE) {
            self.addresses.tries_left = 0;
            self.ask_coordinator(cx);
        }
        self.address_learned(cx);
    }

    fn unsuspect(&mut self, cx: &mut Cx<'_>, members: &[crate::Address]) {
        self.ring.unsuspect(cx, members);
        self.follow_ring(cx);
    }

    /// A watcher of a member's host is worth more than one from elsewhere.
    fn accept(&mut self, cx: &mut Cx<'_>, conn: ConnId, peer: PhysAddr) {
        if !self.is_connected {
            return close(cx, conn);
        }
        if self.watchers.len() >= CONNECTIONS_MAX {
            let hosts: BTreeSet<_> = cx.view().map_or_else(BTreeSet::new, |view| {
                let book = &cx.shared().book;
                view.members().iter().filter_map(|member| book.phys(member)?.ip).collect()
            });
            let is_foreign = |from: &PhysAddr| from.ip.is_none_or(|ip| !hosts.contains(&ip));
            if is_foreign(&peer) {
                return close(cx, conn);
            }
            let foreign = self.watchers.iter().find(|(_, from)| is_foreign(from)).map(|(&conn, _)| conn);
            let Some(foreign) = foreign else { return close(cx, conn) };
            self.watchers.remove(&foreign);
            close(cx, foreign);
        }
        self.watchers.insert(conn, peer);
    }

    fn bytes_received(&mut self, cx: &mut Cx<'_>, conn: ConnId, bytes: &[u8]) {
        // Other bytes have no meaning.
        if !bytes.contains(&GRACEFUL_END) {
            return;
        }
        if self.watchers.remove(&conn).is_some() {
            return close(cx, conn);
        }
        self.neighbour_leaves(cx, conn);
    }
}

fn close(cx: &mut Cx<'_>, conn: ConnId) {
    cx.request(Effect::Close { conn, is_graceful: false });
}

fn close_gracefully(cx: &mut Cx<'_>, conn: ConnId) {
    cx.request(Effect::Write { conn, frame: bytes::Bytes::from_static(&[GRACEFUL_END]) });
    cx.request(Effect::Close { conn, is_graceful: true });
}

impl Protocol for FdSock {
    fn name(&self) -> &'static str {
        "FD_SOCK"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::FD_SOCK
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| match message.headers.take(ProtocolId::FD_SOCK) {
            Some(HeaderBody::FdSock(header)) => {
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
                self.ring.report_alive(cx, members);
                self.unsuspect(cx, members);
            }
            _ => {}
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.ring.retain_members(cx);
            self.addresses.retain(|member| view.contains(member));
            self.begin(cx);
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.close_all(cx);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            LOOK_UP => self.address_missing(cx),
            CACHE => self.ask_coordinator(cx),
            REPORT => self.ring.report_suspects(cx),
            EXPIRE => self.ring.expire_received(cx),
            _ => self.follow_ring(cx),
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        match outcome {
            Outcome::Listening(own) if self.listener == Some(token) => {
                self.own = Some(own);
                self.addresses.set_own(cx.local().clone(), own);
                self.begin(cx);
            }
            Outcome::Failed(why) if self.listener == Some(token) => {
                tracing::warn!(
                    why,
                    "FD_SOCK cannot listen: the other members will not detect a crash of this one"
                );
                self.own = Some(PhysAddr { port: 0, ..cx.shared().phys });
                self.begin(cx);
            }
            Outcome::Failed(_) => self.connect_failed(cx, token),
            Outcome::Accepted { conn, peer } => self.accept(cx, conn, peer),
            Outcome::Connected(conn) => self.connected(cx, token, conn),
            Outcome::Frame { conn, frame } => self.bytes_received(cx, conn, &frame),
            Outcome::Closed { conn, .. } if self.watchers.remove(&conn).is_none() => {
                self.neighbour_crashed(cx, conn);
            }
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::Suspicions, self.ring.suspicions())]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("bind_addr", self.bind.map_or_else(String::new, |ip| ip.to_string()));
        out.put_all(&self.config);
        out.put("actual_bind_port", self.own.map_or(0, |own| own.port));
        out.put("ping_dest", self.watch.neighbour().map_or_else(String::new, ToString::to_string));
        out.put("node_crash_monitor_running", self.watch.is_watching());
        out.put("cache", self.addresses.to_string());
        // Its name here differs from FD_SOCK2's, as in JGroups.
        out.put("num_suspect_events_generated", self.ring.suspicions());
        self.ring.probe(out);
    }
}

#[cfg(test)]
mod tests;
