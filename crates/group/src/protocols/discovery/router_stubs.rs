//! The connections of a member to its routers, for TCPGOSSIP and TUNNEL: connects, registers, and connects again.

use std::net::IpAddr;
use std::time::Duration;

use super::lookups::{LookUps, reachable};
use crate::config::HostPort;
use crate::wire::{self, GossipData, GossipKind};
use crate::{ConnId, Cx, DropReason, Drops, Effect, Outcome, PhysAddr, StackCount, Time, TimerKey, Token};

/// Routers of a member. Each has a queue of its own.
pub(in crate::protocols) const ROUTERS_MAX: usize = 16;

/// A shorter pause would try an unreachable router without end.
const RECONNECT_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Checks the number of routers and the pause between attempts; `name` is the attribute of the routers.
pub(in crate::protocols) fn check_routers(
    name: &'static str,
    routers: usize,
    reconnect_interval: Duration,
) -> Result<(), (&'static str, String)> {
    if !(1..=ROUTERS_MAX).contains(&routers) {
        return Err((name, format!("{name} has {routers} routers: give 1 to {ROUTERS_MAX}")));
    }
    if reconnect_interval < RECONNECT_INTERVAL_MIN {
        let text = format!("reconnect_interval is {reconnect_interval:?}: give at least 100 ms");
        return Err(("reconnect_interval", text));
    }
    Ok(())
}

/// How a protocol connects to its routers.
pub(in crate::protocols) struct StubSettings {
    pub(in crate::protocols) protocol: &'static str,
    pub(in crate::protocols) connect_timeout: Duration,
    /// The pause before the first new attempt. Each further pause is twice as long, up to `reconnect_interval`.
    pub(in crate::protocols) first_pause: Duration,
    pub(in crate::protocols) reconnect_interval: Duration,
    /// The timer of new attempts.
    pub(in crate::protocols) timer: TimerKey,
    /// Whether a member without a router cannot send.
    pub(in crate::protocols) is_transport: bool,
}

/// A member's connections to routers.
pub(in crate::protocols) struct RouterStubs {
    settings: StubSettings,
    all: Vec<Stub>,
    pub(in crate::protocols) lookups: LookUps,
    is_registered: bool,
    /// Since when no router is connected, and when that was last logged.
    disconnected: Option<(Time, Time)>,
}

struct Stub {
    host: HostPort,
    link: Link,
    /// When an unconnected router is tried again.
    next: Time,
    pause: Duration,
    /// Look-ups with a result: each attempt takes the next address of a name.
    resolved: usize,
    /// The time of the last frame.
    heard: Time,
    /// Whether a warning about its loss was logged.
    is_loss_logged: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Not connected. The timer starts the next attempt.
    None,
    /// The router's name is being resolved.
    Resolving,
    Connecting(Token, PhysAddr),
    Open(Token, ConnId, PhysAddr),
}

/// An event of a router's connection, with the router's index.
pub(in crate::protocols) enum StubEvent {
    /// The member is registered there.
    Connected(usize),
    /// The router sent this frame from its address.
    Frame(usize, PhysAddr, GossipData),
    /// The connection, or the attempt, has ended.
    Lost(usize),
}

impl RouterStubs {
    /// Creates the stubs, without connections. Each router counts once; names of one address are found when they are resolved.
    pub(in crate::protocols) fn new(hosts: Vec<HostPort>, settings: StubSettings) -> Self {
        let mut all: Vec<Stub> = Vec::new();
        for host in hosts {
            if all.iter().all(|stub| stub.host != host) {
                all.push(Stub {
                    host,
                    link: Link::None,
                    next: Time::ZERO,
                    pause: settings.first_pause,
                    resolved: 0,
                    heard: Time::ZERO,
                    is_loss_logged: false,
                });
            }
        }
        let lookups = LookUps::new(settings.protocol);
        Self { settings, all, lookups, is_registered: false, disconnected: None }
    }

    pub(in crate::protocols) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the indices of the connected routers.
    pub(in crate::protocols) fn open(&self) -> impl Iterator<Item = usize> {
        self.all.iter().enumerate().filter(|(_, stub)| stub.conn().is_some()).map(|(index, _)| index)
    }

    /// Returns whether an attempt to connect is under way.
    pub(in crate::protocols) fn is_connecting(&self) -> bool {
        self.all.iter().any(|stub| matches!(stub.link, Link::Resolving | Link::Connecting(..)))
    }

    pub(in crate::protocols) fn conn(&self, index: usize) -> Option<ConnId> {
        self.all.get(index).and_then(Stub::conn)
    }

    /// Begins to connect to all routers.
    pub(in crate::protocols) fn connect(&mut self, cx: &mut Cx<'_>) {
        self.is_registered = true;
        self.disconnected = None;
        for stub in &mut self.all {
            (stub.next, stub.pause) = (cx.now(), self.settings.first_pause);
        }
        self.reach(cx);
    }

    /// Ends the registrations and the connections.
    pub(in crate::protocols) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        self.is_registered = false;
        self.disconnected = None;
        self.lookups.cancel();
        cx.disarm(self.settings.timer);
        let unregister = frame_for(cx, GossipKind::Unregister).with_member(cx.local().clone());
        for stub in &mut self.all {
            if let Link::Open(_, conn, _) = std::mem::replace(&mut stub.link, Link::None) {
                cx.request(Effect::Write { conn, frame: wire::encode_gossip(&unregister) });
                cx.request(Effect::Close { conn, is_graceful: true });
            }
        }
    }

    /// Connects to the routers whose pause is over. The timer calls it.
    pub(in crate::protocols) fn reach(&mut self, cx: &mut Cx<'_>) {
        if !self.is_registered {
            return;
        }
        let now = cx.now();
        for index in 0..self.all.len() {
            let stub = &self.all[index];
            if stub.link != Link::None || stub.next > now {
                continue;
            }
            match stub.host.host.parse() {
                Ok(ip) => self.attempt(cx, index, &[ip]),
                Err(_) => {
                    self.lookups.begin_host(cx, &stub.host.host);
                    self.all[index].link = Link::Resolving;
                }
            }
        }
        self.log_disconnected(now);
        self.arm(cx);
    }

    /// Arms the timer for the first router that is tried again.
    fn arm(&self, cx: &mut Cx<'_>) {
        let waiting = self.all.iter().filter(|stub| stub.link == Link::None).map(|stub| stub.next);
        if let Some(next) = waiting.min() {
            cx.arm(self.settings.timer, next.since(cx.now()));
        }
    }

    /// Connects to the next of a router's addresses that no other stub uses: a second registration at one router would take the
    /// place of the first, and its end would end both.
    fn attempt(&mut self, cx: &mut Cx<'_>, index: usize, found: &[IpAddr]) {
        let used: Vec<PhysAddr> = self.all.iter().filter_map(Stub::at).collect();
        let settings = &self.settings;
        let stub = &mut self.all[index];
        let port = stub.host.port;
        let free: Vec<IpAddr> =
            found.iter().copied().filter(|&ip| !used.contains(&PhysAddr::new(ip, port))).collect();
        if let Some(&ip) = free.get(stub.resolved % free.len().max(1)) {
            stub.link = stub.connect(cx, ip, settings.connect_timeout);
        } else {
            if !found.is_empty() {
                tracing::debug!(router = %stub.host, "{}: another name leads to the same router", settings.protocol);
            }
            stub.link = stub.pause_from(cx.now(), settings.reconnect_interval);
        }
        stub.resolved = stub.resolved.wrapping_add(1);
    }

    /// Connects to the routers of a name that has been resolved.
    fn resolved(&mut self, cx: &mut Cx<'_>, name: &str, found: &[(IpAddr, u16)]) {
        let found = reachable(name, found, cx.shared().phys.ip);
        for index in 0..self.all.len() {
            let stub = &self.all[index];
            if stub.host.host == name && stub.link == Link::Resolving {
                self.attempt(cx, index, &found);
            }
        }
        self.note_disconnected(cx.now());
        self.arm(cx);
    }

    /// Handles an outcome. Outcomes of former attempts and connections are no events.
    pub(in crate::protocols) fn done(
        &mut self,
        cx: &mut Cx<'_>,
        token: Token,
        outcome: Outcome,
    ) -> Option<StubEvent> {
        match outcome {
            Outcome::Addresses(_) | Outcome::Failed(_) if self.lookups.is_running(token) => {
                let (name, found) = self.lookups.finish(cx.now(), token, outcome)?;
                self.resolved(cx, &name, &found);
                None
            }
            Outcome::Connected(conn) => self.connected(cx, token, conn).map(StubEvent::Connected),
            Outcome::Frame { conn, frame } => {
                let now = cx.now();
                let index = self.all.iter().position(|stub| stub.conn() == Some(conn))?;
                let stub = &mut self.all[index];
                stub.heard = now;
                // Not before: a router may accept a connection and close it, for its certificate or the number of members.
                stub.pause = self.settings.first_pause;
                self.disconnected = None;
                if std::mem::take(&mut stub.is_loss_logged) {
                    let protocol = self.settings.protocol;
                    tracing::info!(router = %stub.host, "{protocol}: reconnected to the router");
                }
                let Link::Open(_, _, at) = stub.link else { return None };
                match wire::decode_gossip(&frame) {
                    Ok(data) => Some(StubEvent::Frame(index, at, data)),
                    Err(error) => {
                        cx.count_drop(DropReason::Malformed, |_| format!("from a router: {error}"));
                        None
                    }
                }
            }
            Outcome::Failed(why) => self.lost(cx, token, &why).map(StubEvent::Lost),
            Outcome::Closed { .. } => self.lost(cx, token, "the connection was closed").map(StubEvent::Lost),
            _ => None,
        }
    }

    fn connected(&mut self, cx: &mut Cx<'_>, token: Token, conn: ConnId) -> Option<usize> {
        let is_attempt = |stub: &Stub| matches!(stub.link, Link::Connecting(own, _) if own == token);
        let connecting = self.all.iter().position(is_attempt).filter(|_| self.is_registered);
        let Some(index) = connecting else {
            cx.request(Effect::Close { conn, is_graceful: true });
            return None;
        };
        let stub = &mut self.all[index];
        let Link::Connecting(_, at) = stub.link else { return None };
        stub.link = Link::Open(token, conn, at);
        stub.heard = cx.now();
        let shared = cx.shared();
        let register = GossipData {
            name: Some(shared.name.clone()),
            phys: Some(shared.phys),
            ..frame_for(cx, GossipKind::Register).with_member(cx.local().clone())
        };
        cx.request(Effect::Write { conn, frame: wire::encode_gossip(&register) });
        Some(index)
    }

    fn lost(&mut self, cx: &mut Cx<'_>, token: Token, why: &str) -> Option<usize> {
        let is_this = |stub: &Stub| match stub.link {
            Link::Connecting(own, _) | Link::Open(own, ..) => own == token,
            Link::None | Link::Resolving => false,
        };
        let index = self.all.iter().position(is_this)?;
        self.end(cx, index, why);
        Some(index)
    }

    fn end(&mut self, cx: &mut Cx<'_>, index: usize, why: &str) {
        let now = cx.now();
        let again = self.settings.reconnect_interval;
        let stub = &mut self.all[index];
        stub.link = stub.pause_from(now, again);
        if !std::mem::replace(&mut stub.is_loss_logged, true) {
            let protocol = self.settings.protocol;
            tracing::warn!(router = %stub.host, why, ?again, "{protocol}: cannot reach the router");
        }
        self.note_disconnected(now);
        self.arm(cx);
    }

    /// Notes that there may be no router left.
    fn note_disconnected(&mut self, now: Time) {
        if self.open().next().is_none() && !self.is_connecting() && self.disconnected.is_none() {
            self.disconnected = Some((now, now));
            if self.settings.is_transport {
                tracing::error!(
                    routers = self.all.len(),
                    "{}: no router is connected; this member neither sends nor receives",
                    self.settings.protocol
                );
            }
        }
    }

    /// The state without a router is logged again each minute.
    fn log_disconnected(&mut self, now: Time) {
        if self.open().next().is_some() {
            return;
        }
        let Some((since, logged)) = self.disconnected.as_mut() else { return };
        if self.settings.is_transport && now.since(*logged) >= Drops::WARN_INTERVAL {
            *logged = now;
            tracing::error!(
                routers = self.all.len(),
                since = ?now.since(*since),
                "{}: still no router is connected; this member neither sends nor receives",
                self.settings.protocol
            );
        }
    }

    /// Sends heartbeats, and closes connections without a frame for `timeout`. Returns the routers closed.
    pub(in crate::protocols) fn check(&mut self, cx: &mut Cx<'_>, timeout: Duration) -> Vec<usize> {
        let silent = self.close_silent(cx, timeout, "it did not answer within heartbeat_timeout");
        let heartbeat = wire::encode_gossip(&GossipData::new(GossipKind::Heartbeat, None));
        for conn in self.all.iter().filter_map(Stub::conn) {
            cx.request(Effect::Write { conn, frame: heartbeat.clone() });
        }
        silent
    }

    /// Closes connections without a frame for `timeout`. Returns the routers closed.
    pub(in crate::protocols) fn close_silent(
        &mut self,
        cx: &mut Cx<'_>,
        timeout: Duration,
        why: &str,
    ) -> Vec<usize> {
        let now = cx.now();
        let silent = self.open().filter(|&index| now.since(self.all[index].heard) > timeout);
        let silent: Vec<usize> = silent.collect();
        for &index in &silent {
            if let Some(conn) = self.conn(index) {
                cx.request(Effect::Close { conn, is_graceful: false });
            }
            self.end(cx, index, why);
        }
        silent
    }

    pub(in crate::protocols) fn counts(&self) -> Vec<(StackCount, u64)> {
        let connected = self.open().count() as u64;
        vec![(StackCount::Routers, self.all.len() as u64), (StackCount::RoutersConnected, connected)]
    }

    /// Requests the registered members of this cluster.
    pub(in crate::protocols) fn request_members(&self, cx: &mut Cx<'_>, index: usize) {
        if let Some(conn) = self.conn(index) {
            let frame = wire::encode_gossip(&frame_for(cx, GossipKind::GetMembers));
            cx.request(Effect::Write { conn, frame });
        }
    }
}

impl Stub {
    fn connect(&self, cx: &mut Cx<'_>, ip: IpAddr, timeout: Duration) -> Link {
        let to = PhysAddr::new(ip, self.host.port);
        let name = self.host.host.parse::<IpAddr>().is_err().then(|| self.host.host.as_str().into());
        Link::Connecting(cx.request(Effect::Connect { to, own: None, timeout, name }), to)
    }

    /// The address of a connection, or of an attempt.
    fn at(&self) -> Option<PhysAddr> {
        match self.link {
            Link::Connecting(_, at) | Link::Open(_, _, at) => Some(at),
            Link::None | Link::Resolving => None,
        }
    }

    fn conn(&self) -> Option<ConnId> {
        if let Link::Open(_, conn, _) = self.link { Some(conn) } else { None }
    }

    /// Sets the time of the next attempt, and doubles the pause.
    fn pause_from(&mut self, now: Time, longest: Duration) -> Link {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(longest);
        Link::None
    }
}

/// Returns a frame for this member's cluster, otherwise empty.
pub(in crate::protocols) fn frame_for(cx: &Cx<'_>, kind: GossipKind) -> GossipData {
    GossipData::new(kind, cx.shared().cluster.clone())
}
