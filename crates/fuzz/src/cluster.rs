//! A small cluster in virtual time whose messages are recorded, and which accepts foreign bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use consort_conf::{Variables, load_stack};
use consort_group::config::StackConfig;
use consort_group::protocols::registry;
use consort_group::{
    Address, ConnId, Effect, Event, Flags, Indication, Message, Outcome, PhysAddr, PodList, PortState,
    Protocol, Rng, Stack, StackSetup, Time, Token, TransmitDest, View,
};
use consort_net::Interface;
use consort_sim::Schedule;

const LATENCY: Duration = Duration::from_micros(200);

/// Seeds every cluster, so that a recording of one means the same in another.
const SEED: u64 = 0x5eed;

/// The seed of members that no recorded packet names.
const FRESH_SEED: u64 = 0xf4e5;

const NODES_MAX: usize = 8;

/// Minutes show the events of hours in a deployment.
const QUICK: &[(&str, &str, &str)] = &[
    ("MERGE3", "min_interval", "1s"),
    ("MERGE3", "max_interval", "3s"),
    ("FD_ALL3", "timeout", "8s"),
    ("FD_ALL3", "interval", "2s"),
    ("STABLE", "desired_avg_gossip", "3s"),
    ("GMS", "join_timeout", "500ms"),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Way {
    Packet,
    Frame,
    Datagram,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Passed {
    pub(crate) way: Way,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: Bytes,
}

enum SimEvent {
    Passed(Passed),
    Outcome { to: usize, token: Token, outcome: Outcome },
    Wake { node: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sent {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy)]
struct End {
    node: usize,
    token: Token,
    far: ConnId,
}

pub(crate) struct Member {
    pub(crate) stack: Stack,
    pub(crate) address: Address,
    pub(crate) is_gone: bool,
    pub(crate) view: Option<View>,
    pub(crate) sent: Sent,
    pub(crate) got: BTreeMap<Address, u64>,
    wakes_at: Option<Time>,
}

pub(crate) struct Cluster {
    pub(crate) now: Time,
    pub(crate) members: Vec<Member>,
    /// All messages since recording began.
    pub(crate) tap: Option<Vec<Passed>>,
    /// Pairs between which no message passes.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    config: StackConfig,
    schedule: Schedule<SimEvent>,
    listeners: BTreeMap<PhysAddr, (usize, Token)>,
    ends: BTreeMap<ConnId, End>,
    next_conn: u64,
    groups: BTreeMap<usize, Token>,
}

fn phys(node: usize) -> PhysAddr {
    PhysAddr::new([10, 0, 0, node as u8 + 1].into(), 7800)
}

pub(crate) fn interfaces() -> Vec<Interface> {
    ["127.0.0.1", "::1", "192.168.1.5", "10.5.5.5", "fe80::1", "2001:db8::1", "8.8.8.8"]
        .iter()
        .zip(1..)
        .filter_map(|(ip, index)| {
            Some(Interface { name: format!("eth{index}"), ip: ip.parse().ok()?, index })
        })
        .collect()
}

/// `changes` replaces protocols.
pub(crate) fn stock(name: &str, changes: &[(&str, &str)]) -> StackConfig {
    let mut config = match load_stack(name, &Variables::new()) {
        Ok(stack) => stack.config,
        Err(error) => panic!("{error}"),
    };
    for protocol in &mut config.protocols {
        if let Some((_, new)) = changes.iter().find(|(old, _)| *old == protocol.short_name()) {
            (*new).clone_into(&mut protocol.name);
            protocol.attributes.clear();
        }
        for (of, attribute, value) in QUICK {
            if protocol.short_name() == *of {
                protocol.attributes.retain(|(name, _, _)| name != attribute);
                protocol.attributes.push(((*attribute).to_owned(), (*value).to_owned(), protocol.position));
            }
        }
    }
    config
}

/// Returns the addresses of each host name.
fn all_addresses() -> Vec<IpAddr> {
    (0..NODES_MAX).filter_map(|node| phys(node).ip).collect()
}

fn build(config: &StackConfig, node: usize, seed: u64) -> (Stack, Address) {
    let mut rng = Rng::new(seed + node as u64);
    let address = Address::random(&mut rng);
    let Some(Ok((transport, version))) = registry::transport(&config.protocols[0]) else {
        panic!("{} is no transport", config.protocols[0].name)
    };
    let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(transport)];
    for protocol in &config.protocols[1..] {
        let mut resolve = |_: &str| Ok(all_addresses());
        match registry::layer(protocol, &mut resolve) {
            Some(Ok(layer)) => layers.push(layer),
            _ => panic!("{} is not made", protocol.name),
        }
    }
    let setup = StackSetup {
        local: address.clone(),
        name: format!("M{node}").into(),
        phys: phys(node),
        has_multicast: config.protocols[0].short_name() == "UDP",
        seed: rng.next_u64(),
        version,
    };
    (Stack::new(setup, layers), address)
}

impl Cluster {
    pub(crate) fn new(config: StackConfig) -> Self {
        Self {
            now: Time::ZERO,
            members: Vec::new(),
            tap: None,
            cuts: BTreeSet::new(),
            config,
            schedule: Schedule::default(),
            listeners: BTreeMap::new(),
            ends: BTreeMap::new(),
            next_conn: 1,
            groups: BTreeMap::new(),
        }
    }

    pub(crate) fn start(&mut self) -> usize {
        self.start_as(SEED)
    }

    pub(crate) fn start_fresh(&mut self) -> usize {
        self.start_as(FRESH_SEED)
    }

    fn start_as(&mut self, seed: u64) -> usize {
        let node = self.members.len();
        let (mut stack, address) = build(&self.config, node, seed);
        stack.start(self.now);
        stack.handle_connect(self.now, "fuzz");
        self.members.push(Member {
            stack,
            address,
            is_gone: false,
            view: None,
            sent: Sent::default(),
            got: BTreeMap::new(),
            wakes_at: None,
        });
        self.work(node);
        node
    }

    fn at(&mut self, at: Time, event: SimEvent) {
        self.schedule.add(at, event);
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some((at, event)) = self.schedule.take(until) {
            self.now = self.now.max(at);
            match event {
                SimEvent::Passed(passed) => {
                    if !self.cuts.contains(&(passed.from, passed.to)) {
                        self.arrive(&passed);
                    }
                }
                SimEvent::Outcome { to, token, outcome } => self.tell(to, token, outcome),
                SimEvent::Wake { node } => {
                    let member = &mut self.members[node];
                    member.wakes_at = None;
                    if !member.is_gone {
                        member.stack.handle_timeout(self.now);
                        self.work(node);
                    }
                }
            }
        }
        self.now = until;
    }

    fn tell(&mut self, to: usize, token: Token, outcome: Outcome) {
        if !self.members[to].is_gone {
            self.members[to].stack.handle_done(self.now, token, outcome);
            self.work(to);
        }
    }

    pub(crate) fn arrive(&mut self, passed: &Passed) {
        let Passed { way, from, to, bytes } = passed;
        if self.members.get(*to).is_none_or(|member| member.is_gone) {
            return;
        }
        if let Some(tap) = &mut self.tap {
            tap.push(passed.clone());
        }
        match way {
            Way::Packet => {
                self.members[*to].stack.handle_receive(self.now, phys(*from), bytes.clone());
                self.work(*to);
            }
            Way::Frame => {
                let end = self.ends.iter().find(|(_, end)| {
                    end.node == *to && self.ends.get(&end.far).is_some_and(|far| far.node == *from)
                });
                if let Some((&conn, &End { token, .. })) = end {
                    self.tell(*to, token, Outcome::Frame { conn, frame: bytes.clone() });
                }
            }
            Way::Datagram => {
                if let Some(&token) = self.groups.get(to) {
                    self.tell(*to, token, Outcome::Datagram { from: phys(*from), datagram: bytes.clone() });
                }
            }
        }
    }

    pub(crate) fn act(&mut self, node: usize, act: impl FnOnce(&mut Stack, Time)) {
        if self.members.get(node).is_some_and(|member| !member.is_gone) {
            act(&mut self.members[node].stack, self.now);
            self.work(node);
        }
    }

    pub(crate) fn send(&mut self, from: usize, to: Option<usize>, length: usize, flags: Flags) {
        let dest = to.map(|to| self.members[to].address.clone());
        let mut message = Message::bytes(dest, vec![0x5a; length]);
        message.flags = flags;
        self.act(from, |stack, now| stack.handle_send(now, message));
    }

    pub(crate) fn crash(&mut self, node: usize) {
        self.members[node].is_gone = true;
        self.listeners.retain(|_, (owner, _)| *owner != node);
        self.groups.remove(&node);
        let own: Vec<ConnId> =
            self.ends.iter().filter(|(_, end)| end.node == node).map(|(conn, _)| *conn).collect();
        for conn in own {
            self.close(conn, false);
        }
    }

    fn close(&mut self, conn: ConnId, is_graceful: bool) {
        let Some(near) = self.ends.remove(&conn) else { return };
        if let Some(far) = self.ends.remove(&near.far) {
            let outcome = Outcome::Closed { conn: near.far, is_graceful, is_reset: false };
            self.at(self.now + LATENCY, SimEvent::Outcome { to: far.node, token: far.token, outcome });
        }
    }

    fn work(&mut self, node: usize) {
        let now = self.now;
        // A member whose layers go on requesting timers or actions is as wrong as one that goes on sending.
        for round in 0.. {
            assert!(round < 1_000, "a member never comes to rest");
            self.members[node].stack.run(now);
            let mut is_quiet = true;
            while let Some(indication) = self.members[node].stack.poll_indication() {
                is_quiet = false;
                self.indication(node, indication);
            }
            while let Some((token, effect)) = self.members[node].stack.poll_effect() {
                is_quiet = false;
                self.perform(node, token, effect);
            }
            while let Some(transmit) = self.members[node].stack.poll_transmit() {
                let dests: Vec<usize> = match &transmit.dest {
                    TransmitDest::One(to) => self.node_at(*to).into_iter().collect(),
                    TransmitDest::Many(all) => all.iter().filter_map(|to| self.node_at(*to)).collect(),
                    TransmitDest::Multicast => (0..self.members.len()).collect(),
                };
                let copies = match &transmit.dest {
                    TransmitDest::Many(all) => all.len() as u64,
                    _ => 1,
                };
                let sent = &mut self.members[node].sent;
                sent.packets += copies;
                sent.bytes += copies * transmit.length() as u64;
                let packet = transmit.whole();
                for to in dests.into_iter().filter(|&to| to != node) {
                    let passed = Passed { way: Way::Packet, from: node, to, bytes: packet.clone() };
                    self.at(now + LATENCY, SimEvent::Passed(passed));
                }
            }
            if is_quiet {
                break;
            }
        }
        let member = &mut self.members[node];
        if let Some(at) = member.stack.poll_timeout().map(|at| at.max(now))
            && member.wakes_at.is_none_or(|planned| at < planned)
        {
            member.wakes_at = Some(at);
            self.at(at, SimEvent::Wake { node });
        }
    }

    fn node_at(&self, place: PhysAddr) -> Option<usize> {
        (0..self.members.len()).find(|&node| phys(node) == place)
    }

    fn indication(&mut self, node: usize, indication: Indication) {
        let now = self.now;
        let member = &mut self.members[node];
        match indication {
            Indication::Batch(batch) => {
                for message in batch.messages {
                    let Some(src) = message.src.clone() else { continue };
                    let credit = u64::from(message.credit);
                    member.stack.handle_consumed(now, &src, message.is_multicast(), credit);
                    *member.got.entry(src).or_default() += 1;
                }
            }
            Indication::Event(Event::View(view)) => member.view = Some(view),
            Indication::Event(Event::StateRequested { token, .. }) => {
                let state = Ok(Some(Bytes::from_static(b"the state of the application")));
                member.stack.handle_event(now, Event::ProvideState { token, state });
            }
            Indication::Event(Event::Disconnected) => self.crash(node),
            Indication::Event(_) => {}
        }
    }

    fn connect(&mut self, node: usize, token: Token, to: PhysAddr, own: Option<PhysAddr>) {
        let now = self.now;
        let outcome = match own.zip(self.listeners.get(&to).copied()) {
            Some((own, (peer, listener)))
                if !self.cuts.contains(&(node, peer)) && !self.cuts.contains(&(peer, node)) =>
            {
                let (near, far) = (ConnId(self.next_conn), ConnId(self.next_conn + 1));
                self.next_conn += 2;
                self.ends.insert(near, End { node, token, far });
                self.ends.insert(far, End { node: peer, token: listener, far: near });
                let outcome = Outcome::Accepted { conn: far, peer: own };
                self.at(now + LATENCY, SimEvent::Outcome { to: peer, token: listener, outcome });
                Outcome::Connected(near)
            }
            _ => Outcome::Failed("connection refused".to_owned()),
        };
        self.at(now, SimEvent::Outcome { to: node, token, outcome });
    }

    fn perform(&mut self, node: usize, token: Token, effect: Effect) {
        let here = |outcome| SimEvent::Outcome { to: node, token, outcome };
        let now = self.now;
        match effect {
            Effect::Listen { ports, .. } | Effect::ListenStreams { ports, .. } => {
                // Any port: the first one of a range that no fixed port is in.
                let ports = ports.into_iter().flat_map(|port| match port {
                    0 => 40_000..=40_999,
                    port => port..=port,
                });
                let mut places = ports.map(|port| PhysAddr { port, ..phys(node) });
                let outcome = match places.find(|place| !self.listeners.contains_key(place)) {
                    Some(place) => {
                        self.listeners.insert(place, (node, token));
                        Outcome::Listening(place)
                    }
                    None => Outcome::Failed("no port is free".to_owned()),
                };
                self.at(now, here(outcome));
            }
            Effect::CloseListener => self
                .listeners
                .retain(|_, (owner, listener)| *owner != node || listener.layer() != token.layer()),
            Effect::Connect { to, own, .. } => self.connect(node, token, to, own),
            Effect::ConnectStream { to, .. } => self.connect(node, token, to, Some(phys(node))),
            Effect::ProbePort { to, .. } => {
                let is_open = self.listeners.contains_key(&to);
                let state = if is_open { PortState::Open } else { PortState::Refused };
                self.at(now + LATENCY, here(Outcome::Port(state)));
            }
            Effect::Write { conn, frame } => {
                let far = self.ends.get(&conn).and_then(|near| self.ends.get(&near.far));
                if let Some(to) = far.map(|far| far.node) {
                    let passed = Passed { way: Way::Frame, from: node, to, bytes: frame };
                    self.at(now + LATENCY, SimEvent::Passed(passed));
                }
            }
            // There are no routers here.
            Effect::Forward { .. } => {}
            Effect::Close { conn, is_graceful } => self.close(conn, is_graceful),
            Effect::JoinGroup { .. } => {
                self.groups.insert(node, token);
                self.at(now, here(Outcome::Joined));
            }
            Effect::SendGroup { datagram } => {
                for to in self.groups.keys().copied().collect::<Vec<_>>() {
                    let passed = Passed { way: Way::Datagram, from: node, to, bytes: datagram.clone() };
                    self.at(now + LATENCY, SimEvent::Passed(passed));
                }
            }
            Effect::LeaveGroup => drop(self.groups.remove(&node)),
            Effect::ReadFiles { .. } => self.at(now, here(Outcome::Files(Vec::new()))),
            Effect::Database { request, .. } if request.changes_nothing() => {
                self.at(now, here(Outcome::Rows(Vec::new())));
            }
            Effect::QueryDns { .. } => self.at(now, here(Outcome::Services(Vec::new()))),
            Effect::ListPods(_) => self.at(now, here(Outcome::Pods(PodList::default()))),
            Effect::LookUp { .. } => self.at(now, here(Outcome::Addresses(all_addresses()))),
            Effect::FindLocally => self.at(now, here(Outcome::Local(Vec::new()))),
            Effect::WriteFile { .. }
            | Effect::RemoveFile { .. }
            | Effect::RemoveFiles { .. }
            | Effect::Database { .. }
            | Effect::AnnounceLocally(_)
            | Effect::RetractLocally => self.at(now, here(Outcome::Done)),
        }
    }
}

/// Returns the time at the end, earlier if timers fired more often.
pub(crate) fn run_alone(stack: &mut Stack, start: Time, time: Duration, wakes_max: usize) -> Time {
    let (mut now, end) = (start, start + time);
    for _ in 0..wakes_max {
        for _ in 0..100 {
            stack.run(now);
            while stack.poll_indication().is_some() {}
            while stack.poll_transmit().is_some() {}
            let mut is_quiet = true;
            while let Some((token, effect)) = stack.poll_effect() {
                is_quiet = false;
                let outcome = match effect {
                    Effect::Listen { ports, .. } | Effect::ListenStreams { ports, .. } => {
                        let port = ports.first().copied().unwrap_or(1);
                        Outcome::Listening(PhysAddr::new([127, 0, 0, 1].into(), port))
                    }
                    Effect::JoinGroup { .. } => Outcome::Joined,
                    Effect::ReadFiles { .. } => Outcome::Files(Vec::new()),
                    Effect::LookUp { .. } => Outcome::Addresses(Vec::new()),
                    Effect::QueryDns { .. } => Outcome::Services(Vec::new()),
                    Effect::ListPods(_) => Outcome::Pods(PodList::default()),
                    Effect::FindLocally => Outcome::Local(Vec::new()),
                    Effect::Connect { .. } | Effect::ConnectStream { .. } => {
                        Outcome::Failed("no member listens".to_owned())
                    }
                    Effect::ProbePort { .. } => Outcome::Port(PortState::Refused),
                    Effect::WriteFile { .. } | Effect::RemoveFile { .. } | Effect::RemoveFiles { .. } => {
                        Outcome::Failed("no disk".to_owned())
                    }
                    Effect::Database { .. } => Outcome::Failed("no database".to_owned()),
                    Effect::AnnounceLocally(_) | Effect::RetractLocally => Outcome::Done,
                    Effect::CloseListener
                    | Effect::Write { .. }
                    | Effect::Forward { .. }
                    | Effect::Close { .. }
                    | Effect::SendGroup { .. }
                    | Effect::LeaveGroup => continue,
                };
                stack.handle_done(now, token, outcome);
            }
            if is_quiet {
                break;
            }
        }
        match stack.poll_timeout() {
            Some(at) if at <= end => {
                now = now.max(at);
                stack.handle_timeout(now);
            }
            _ => return end,
        }
    }
    now
}

pub(crate) fn alone() -> (Stack, Time) {
    static CONFIG: OnceLock<StackConfig> = OnceLock::new();
    let (mut stack, _) = build(CONFIG.get_or_init(|| stock("tcp.xml", &[])), 0, SEED);
    stack.start(Time::ZERO);
    stack.handle_connect(Time::ZERO, "fuzz");
    let now = run_alone(&mut stack, Time::ZERO, Duration::from_secs(5), 100);
    (stack, now)
}
