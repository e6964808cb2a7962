//! A member whose only layer sends and receives bare packets, to test an edge by itself.
#![allow(dead_code, unreachable_pub)] // each test program uses a part

use std::time::Duration;

use bytes::Bytes;
use consort_group::{
    Address, Cx, Event, Flags, Indication, Message, MessageBatch, Outcome, PacketPriority, PhysAddr,
    Protocol, ProtocolId, Rng, Stack, StackSetup, Time, Token, Transmit, TransmitDest, Version, View, ViewId,
};
use consort_net::{
    Application, BindAddr, BoundEdge, Command, Driver, DriverHandle, EdgeState, EdgeStats, TransportConfig,
};
use tokio::sync::{mpsc, watch};

/// Timeout of all waits. No test takes a tenth of it.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Packets that a test has not read yet; more are dropped, which the test notices.
const UNREAD_MAX: usize = 100_000;

/// Sends payloads as packets to their destination, OOB ones with control priority.
pub struct Raw {
    outcomes: mpsc::Sender<Outcome>,
}

impl Protocol for Raw {
    fn name(&self) -> &'static str {
        "RAW"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::TP
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in batch.messages.drain(..) {
            let dest = match message.dest {
                Some(Address::Ip(peer)) => TransmitDest::One(peer),
                _ => TransmitDest::Multicast,
            };
            let priority = if message.is_oob() { PacketPriority::Control } else { PacketPriority::Data };
            let bytes = message.payload_bytes().cloned().unwrap_or_default();
            cx.transmit(Transmit { dest, bytes, tail: Default::default(), priority });
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, from: PhysAddr, packet: Bytes) {
        let mut message = Message::bytes(None, packet);
        message.src = Some(Address::Ip(from));
        cx.deliver(message);
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> consort_group::Pass {
        // In place of GMS: a view of members that are named by their addresses.
        if let Event::View(view) = event {
            for member in view.members() {
                let Address::Ip(phys) = member else { continue };
                cx.book().learn(member, None, Some(*phys));
            }
            cx.install(view.clone());
        }
        consort_group::Pass::Stop
    }

    fn operation(&mut self, _: &mut Cx<'_>, _: &str, _: &[&str]) -> Option<Result<String, String>> {
        None
    }

    fn done(&mut self, _: &mut Cx<'_>, _: Token, outcome: Outcome) {
        let _ = self.outcomes.try_send(outcome);
    }
}

/// The state after the last cycle.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub stats: EdgeStats,
    pub peers: Vec<PhysAddr>,
    pub warnings: Vec<(&'static str, u64)>,
}

impl Seen {
    pub fn warning_count(&self, cause: &str) -> u64 {
        self.warnings.iter().find(|(known, _)| *known == cause).map_or(0, |(_, count)| *count)
    }
}

struct Recorder {
    packets: mpsc::Sender<(PhysAddr, Bytes)>,
    seen: watch::Sender<Seen>,
}

impl Application for Recorder {
    fn indication(&mut self, _stack: &mut Stack, _now: Time, indication: Indication) {
        let Indication::Batch(batch) = indication else { return };
        for message in batch.messages {
            let Some(Address::Ip(from)) = message.src else { panic!("a packet without source") };
            let _ = self.packets.try_send((from, message.payload_bytes().cloned().unwrap_or_default()));
        }
    }

    fn after_cycle(&mut self, _stack: &Stack, _now: Time, edge: &EdgeState<'_>) {
        let mut peers = edge.peers();
        peers.sort();
        let seen = Seen { stats: edge.stats(), peers, warnings: edge.warnings() };
        self.seen.send_replace(seen);
    }
}

/// A running member.
pub struct Member {
    pub handle: DriverHandle,
    pub phys: PhysAddr,
    pub packets: mpsc::Receiver<(PhysAddr, Bytes)>,
    pub outcomes: mpsc::Receiver<Outcome>,
    pub seen: watch::Receiver<Seen>,
}

/// TCP on a free port of the loopback interface.
pub fn tcp() -> TransportConfig {
    TransportConfig { bind_addr: "127.0.0.1".parse().unwrap(), bind_port: 0, ..TransportConfig::tcp() }
}

pub fn bind_addr(text: &str) -> BindAddr {
    text.parse().unwrap()
}

impl Member {
    pub fn start(config: &TransportConfig) -> Self {
        let edge = BoundEdge::bind(config, Version::V5_5_7).unwrap();
        Self::over(edge)
    }

    pub fn over(edge: BoundEdge) -> Self {
        let (packets_in, packets) = mpsc::channel(UNREAD_MAX);
        let (seen_in, seen) = watch::channel(Seen::default());
        let app = Recorder { packets: packets_in, seen: seen_in };
        Self { packets, seen, ..Self::with(edge, app) }
    }

    /// Starts one with an application of its own; it does not report packets.
    pub fn with(edge: BoundEdge, app: impl Application + 'static) -> Self {
        let (_, packets) = mpsc::channel(1);
        let (_, seen) = watch::channel(Seen::default());
        let (outcomes_in, outcomes) = mpsc::channel(UNREAD_MAX);
        let phys = edge.phys_addr();
        let setup = StackSetup {
            local: Address::random(&mut Rng::new(u64::from(phys.port))),
            name: "raw".into(),
            phys,
            has_multicast: edge.has_multicast(),
            seed: 1,
            version: Version::V5_5_7,
        };
        let stack = Stack::new(setup, vec![Box::new(Raw { outcomes: outcomes_in })]);
        let handle = Driver::spawn(stack, edge, app).unwrap();
        Self { handle, phys, packets, outcomes, seen }
    }

    pub fn send(&self, to: PhysAddr, packet: impl Into<Bytes>) {
        self.handle.submit(Command::Send(Message::bytes(Some(Address::Ip(to)), packet.into()))).unwrap();
    }

    pub fn send_urgent(&self, to: PhysAddr, packet: impl Into<Bytes>) {
        let message = Message::bytes(Some(Address::Ip(to)), packet.into()).with_flags(Flags::OOB);
        self.handle.submit(Command::Send(message)).unwrap();
    }

    pub fn multicast(&self, packet: impl Into<Bytes>) {
        self.handle.submit(Command::Send(Message::bytes(None, packet.into()))).unwrap();
    }

    /// Installs a view of the members at these addresses.
    pub fn install(&self, id: u64, members: &[PhysAddr]) {
        let members: Vec<Address> = members.iter().map(|&phys| Address::Ip(phys)).collect();
        let view = View::new(ViewId { creator: members[0].clone(), id }, members);
        self.handle.submit(Command::Event(Event::View(view))).unwrap();
    }

    pub async fn packet(&mut self) -> (PhysAddr, Bytes) {
        tokio::time::timeout(TIMEOUT, self.packets.recv()).await.expect("a packet arrives").unwrap()
    }

    pub async fn outcome(&mut self) -> Outcome {
        tokio::time::timeout(TIMEOUT, self.outcomes.recv()).await.expect("an outcome comes").unwrap()
    }

    /// Waits until the state after a cycle fulfils the condition.
    pub async fn until(&mut self, is_so: impl FnMut(&Seen) -> bool) -> Seen {
        let seen = tokio::time::timeout(TIMEOUT, self.seen.wait_for(is_so)).await;
        if let Ok(seen) = seen {
            return seen.expect("the driver runs").clone();
        }
        drop(seen);
        panic!("not so in time: {:?}", self.seen.borrow());
    }
}
