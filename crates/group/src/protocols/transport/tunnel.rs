//! TUNNEL: all packets go through routers, to members' addresses instead of physical ones.
//!
//! A packet goes through one router. The routers list the members registered with them, so that a member finds the
//! router that reaches most others. A multicast goes through that one, and once more through another router to each
//! member that only the other one reaches.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;

use super::bundler::{Packet, Target};
use crate::config::HostPort;
use crate::protocols::discovery::router_stubs::{RouterStubs, StubEvent, StubSettings, check_routers};
use crate::wire::{self, GossipData, GossipKind, PING_DATA_MAX};
use crate::{
    Address, Cx, DropReason, Effect, Outcome, PhysAddr, ProbeOut, Severity, StackCount, TimerKey, Token, View,
};

crate::properties! {
    /// TUNNEL's properties.
    TunnelConfig {
        /// The routers, as host:port or host with the port in brackets, separated by commas, at most 16. 12001 is
        /// their usual port. A name is resolved again at each attempt to connect. JGroups has no default.
        gossip_router_hosts: String = "localhost[12001]".to_owned(),
        /// The longest time after which an unreachable or lost router is tried again. The first attempt follows
        /// after a sixteenth of it, and each further pause is twice as long.
        reconnect_interval: Duration = Duration::from_secs(5),
        /// The interval of heartbeats to routers; 0 = none.
        heartbeat_interval: Duration = Duration::ZERO,
        /// The time without a frame of a router after which its connection is closed. It has to be longer than
        /// `heartbeat_interval`, without which it has no effect.
        heartbeat_timeout: Duration = Duration::ZERO,
    }
}

impl TunnelConfig {
    /// Checks the combination.
    ///
    /// # Errors
    ///
    /// The attribute, and why its value is refused.
    pub fn check(&self, routers: usize) -> Result<(), (&'static str, String)> {
        check_routers("gossip_router_hosts", routers, self.reconnect_interval)?;
        if self.heartbeat_interval.is_zero() && !self.heartbeat_timeout.is_zero() {
            let text = "heartbeat_timeout has no effect without heartbeat_interval: set both".to_owned();
            return Err(("heartbeat_timeout", text));
        }
        if !self.heartbeat_interval.is_zero() && self.heartbeat_interval >= self.heartbeat_timeout {
            let text = format!(
                "heartbeat_interval ({:?}) must be shorter than heartbeat_timeout ({:?})",
                self.heartbeat_interval, self.heartbeat_timeout
            );
            return Err(("heartbeat_interval", text));
        }
        Ok(())
    }
}

const RECONNECT: TimerKey = TimerKey(1);
const HEARTBEAT: TimerKey = TimerKey(2);
/// The members of routers are requested again.
const REFRESH: TimerKey = TimerKey(3);

/// As in JGroups' stubs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Longer frames end the connection to `consort router`. Stacks fragment messages to 60 KB.
const FRAME_LEN_MAX: usize = 1024 * 1024;

/// Packets wait for the first connection, so that a join's first discovery is not lost.
const HELD_BYTES_MAX: usize = 1024 * 1024;

/// The interval of requests for the members of several routers.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// A router that answers none of the requests for its members is closed after this time if there is another one: its connection may
/// stay open while its host, or its process, has stopped, and packets to it would fill the queue.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(12);

/// The routers of a member, and the members that each reaches.
pub(super) struct Tunnel {
    config: TunnelConfig,
    stubs: RouterStubs,
    /// By router.
    reached: Vec<BTreeSet<Address>>,
    /// Valid until a router, its members or the view change.
    plan: Option<Plan>,
    held: VecDeque<Packet>,
    held_bytes: usize,
    unsent: u64,
}

/// The way of multicasts.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Connected routers, the best first.
    routers: Vec<usize>,
    /// Members that the first router does not reach, with the router that does.
    others: Vec<(Address, usize)>,
}

impl Tunnel {
    pub(super) fn new(config: TunnelConfig, hosts: Vec<HostPort>) -> Self {
        let settings = StubSettings {
            protocol: "TUNNEL",
            connect_timeout: CONNECT_TIMEOUT,
            first_pause: config.reconnect_interval / 16,
            reconnect_interval: config.reconnect_interval,
            timer: RECONNECT,
            is_transport: true,
        };
        let stubs = RouterStubs::new(hosts, settings);
        Self {
            config,
            reached: vec![BTreeSet::new(); stubs.len()],
            stubs,
            plan: None,
            held: VecDeque::new(),
            held_bytes: 0,
            unsent: 0,
        }
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        self.stubs.connect(cx);
        if !self.config.heartbeat_interval.is_zero() {
            cx.arm(HEARTBEAT, self.config.heartbeat_interval);
        }
        if self.stubs.len() > 1 {
            cx.arm(REFRESH, REFRESH_INTERVAL);
        }
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(HEARTBEAT);
        cx.disarm(REFRESH);
        self.stubs.disconnect(cx);
        self.reached.iter_mut().for_each(BTreeSet::clear);
        self.plan = None;
        self.held.clear();
        self.held_bytes = 0;
    }

    pub(super) fn view_changed(&mut self, cx: &mut Cx<'_>) {
        self.plan = None;
        if self.stubs.len() > 1 {
            self.request_members(cx);
        }
    }

    pub(super) fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            RECONNECT => {
                self.stubs.reach(cx);
                self.settle_held(cx);
            }
            HEARTBEAT => {
                for index in self.stubs.check(cx, self.config.heartbeat_timeout) {
                    self.forget(index);
                }
                cx.arm(HEARTBEAT, self.config.heartbeat_interval);
            }
            REFRESH => {
                let why = "it did not answer for 12 s";
                for index in self.stubs.close_silent(cx, ANSWER_TIME_MAX, why) {
                    self.forget(index);
                }
                self.request_members(cx);
                cx.arm(REFRESH, REFRESH_INTERVAL);
            }
            _ => {}
        }
    }

    fn request_members(&self, cx: &mut Cx<'_>) {
        for index in self.stubs.open() {
            self.stubs.request_members(cx, index);
        }
    }

    fn forget(&mut self, index: usize) {
        self.reached[index].clear();
        self.plan = None;
    }

    /// Handles an outcome. Returns what a router has sent.
    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) -> Option<Received> {
        let event = self.stubs.done(cx, token, outcome);
        let received = match event {
            Some(StubEvent::Connected(index)) => {
                self.forget(index);
                self.request_members(cx);
                None
            }
            Some(StubEvent::Lost(index)) => {
                self.forget(index);
                None
            }
            Some(StubEvent::Frame(index, at, data)) => return self.receive(cx, index, at, data),
            None => None,
        };
        self.settle_held(cx);
        received
    }

    fn receive(&mut self, cx: &Cx<'_>, index: usize, at: PhysAddr, data: GossipData) -> Option<Received> {
        if data.group != cx.shared().cluster {
            return None;
        }
        match data.kind {
            GossipKind::Message => {
                let sender = data.sender?;
                // A router sends a multicast to all registered members.
                if cx.is_local(&sender) {
                    return None;
                }
                let reached = &mut self.reached[index];
                if !reached.contains(&sender) && reached.len() < PING_DATA_MAX {
                    reached.insert(sender);
                    self.plan = None;
                }
                Some(Received::Packet(at, data.payload))
            }
            GossipKind::Members | GossipKind::LastMembers => {
                let members: BTreeSet<Address> =
                    data.members.iter().map(|member| member.sender.clone()).collect();
                if members != self.reached[index] {
                    self.reached[index] = members;
                    self.plan = None;
                }
                Some(Received::Members(data))
            }
            GossipKind::Suspect => {
                let member = data.addr?;
                if self.reached[index].remove(&member) {
                    self.plan = None;
                }
                Some(Received::Suspect(member))
            }
            _ => None,
        }
    }

    /// Sends a packet, or holds it until the first router is connected.
    pub(super) fn send(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if self.stubs.open().next().is_some() {
            return self.forward(cx, &packet);
        }
        let length = packet.bytes.len() + packet.tail.len();
        if self.stubs.is_connecting() && self.held_bytes + length <= HELD_BYTES_MAX {
            self.held_bytes += length;
            self.held.push_back(packet);
        } else {
            self.count_unsent(cx, 1);
        }
    }

    /// Sends the held packets, or drops them when no attempt is under way any more.
    fn settle_held(&mut self, cx: &mut Cx<'_>) {
        let is_open = self.stubs.open().next().is_some();
        if self.held.is_empty() || (!is_open && self.stubs.is_connecting()) {
            return;
        }
        self.held_bytes = 0;
        let held = std::mem::take(&mut self.held);
        if is_open {
            held.iter().for_each(|packet| self.forward(cx, packet));
        } else {
            self.count_unsent(cx, held.len() as u64);
        }
    }

    /// The log has the state already, once a minute.
    fn count_unsent(&mut self, cx: &mut Cx<'_>, packets: u64) {
        self.unsent += packets;
        cx.count_drop_of(DropReason::NoRouter, Severity::Expected, |_| "no router is connected".to_owned());
    }

    fn forward(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        if self.plan.is_none() {
            self.plan = Some(self.make_plan(cx));
        }
        let Some(plan) = &self.plan else { return };
        let Some(&first) = plan.routers.first() else { return };
        match (&packet.to, &packet.dest) {
            (Target::Member, Some(dest)) => {
                let reaching = plan.routers.iter().find(|&&index| self.reached[index].contains(dest));
                self.write(cx, *reaching.unwrap_or(&first), Some(dest), packet);
            }
            _ => {
                self.write(cx, first, None, packet);
                for (member, index) in &plan.others {
                    self.write(cx, *index, Some(member), packet);
                }
            }
        }
    }

    fn write(&self, cx: &mut Cx<'_>, index: usize, dest: Option<&Address>, packet: &Packet) {
        let Some(conn) = self.stubs.conn(index) else { return };
        let frame = wire::encode_gossip_message(
            cx.shared().cluster.as_deref(),
            dest,
            cx.local(),
            &packet.bytes,
            packet.tail.len(),
        );
        let length = frame.len() + packet.tail.len();
        if length > FRAME_LEN_MAX {
            return cx.count_drop(DropReason::Unexpected, |_| {
                format!(
                    "a packet of {length} bytes: routers take {FRAME_LEN_MAX}; the stack needs FRAG2 (or another \
                     fragmentation) with a smaller frag_size"
                )
            });
        }
        let (tail, priority) = (packet.tail.clone(), packet.priority);
        cx.request(Effect::Forward { conn, frame, tail, priority });
    }

    /// Members begin with different routers, so that the load is shared.
    fn make_plan(&self, cx: &Cx<'_>) -> Plan {
        let others: Vec<&Address> = cx.view().iter().copied().flat_map(View::members).collect();
        let others: Vec<&Address> = others.into_iter().filter(|member| !cx.is_local(member)).collect();
        let mut hasher = DefaultHasher::new();
        cx.local().hash(&mut hasher);
        let count = self.stubs.len();
        // Less than `count`, which is 16 at most.
        let start = (hasher.finish() % count.max(1) as u64) as usize;
        let missed =
            |index: usize| others.iter().filter(|member| !self.reached[index].contains(member)).count();
        let mut routers: Vec<usize> = self.stubs.open().collect();
        routers.sort_by_key(|&index| (missed(index), (index + count - start) % count.max(1)));
        let Some((&first, rest)) = routers.split_first() else { return Plan::default() };
        let elsewhere = others.iter().filter(|member| !self.reached[first].contains(member));
        let elsewhere = elsewhere.filter_map(|member| {
            let index = rest.iter().find(|&&index| self.reached[index].contains(member))?;
            Some(((*member).clone(), *index))
        });
        Plan { others: elsewhere.collect(), routers }
    }

    pub(super) fn counts(&self) -> Vec<(StackCount, u64)> {
        self.stubs.counts()
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_routers", self.stubs.len());
        out.put("num_routers_connected", self.stubs.open().count());
        out.put("unresolved_hosts", self.stubs.lookups.unresolved());
        out.put("num_packets_without_router", self.unsent);
    }
}

/// What a router has sent.
pub(super) enum Received {
    /// A member's packet, from this router.
    Packet(PhysAddr, Bytes),
    /// The registered members.
    Members(GossipData),
    /// A member whose connection to the router has ended.
    Suspect(Address),
}
