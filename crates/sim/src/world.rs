//! The world: time, the queue of future events, and the members.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use consort_group::config::StackConfig;
use consort_group::{
    Address, Event, Indication, Message, MessageBatch, Outcome, PhysAddr, Rng, Time, Token, TransmitDest,
};

use crate::effects::{EffectRunner, NodeOutcome};
use crate::grid::Grid;
use crate::network::Network;
use crate::node::{Got, Node, place_of};
use crate::schedule::Schedule;

/// The members' messages while traffic is on.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// The mean time between two sends of a member; zero = no member sends.
    pub interval: Duration,
    /// The part of sends that go to one member.
    pub unicasts: f64,
    /// The largest payload.
    pub size_max: usize,
}

/// A future event.
enum SimEvent {
    /// A packet arrives at a place, at the node that is there by then.
    Packet {
        place: usize,
        from: PhysAddr,
        bytes: Bytes,
    },
    Wake {
        node: usize,
    },
    Outcome {
        node: usize,
        token: Token,
        outcome: Outcome,
    },
    Consumed {
        node: usize,
        src: Address,
        is_multicast: bool,
        credit: u64,
        is_counted: bool,
    },
    Send {
        node: usize,
    },
    /// A client's turn.
    ClientTurn {
        client: usize,
    },
    /// The turn of an iteration's reader.
    IterationTurn {
        iterating_client: usize,
    },
    /// A listener begins, or its reader takes events.
    ListenerTurn {
        listener_client: usize,
    },
    /// A member's store is ready with a request.
    Store {
        node: usize,
    },
    /// A clear of a cache continues.
    Clear {
        bulk: usize,
    },
    Fault,
}

/// A payload's number, sender and length.
const HEAD: usize = 24;

/// The number of bytes after which the body of a message repeats itself.
const PERIOD: usize = 256;

/// Two periods of a body: from each offset in the first on there is a whole one.
const BODY: [u8; 2 * PERIOD] = {
    let mut body = [0; 2 * PERIOD];
    let mut at = 0;
    while at < body.len() {
        body[at] = (at as u8).wrapping_mul(31);
        at += 1;
    }
    body
};

/// Returns a period of the body of the message of this number: each byte depends on its offset, and on the number.
fn period(number: u64) -> &'static [u8] {
    &BODY[usize::from(number as u8)..][..PERIOD]
}

/// Returns the content of a node's message of this number and size.
fn content(sender: usize, number: u64, size: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(size.max(HEAD));
    bytes.put_u64(number);
    bytes.put_u64(sender as u64);
    bytes.put_u64(size as u64);
    while bytes.len() < size {
        let rest = size - bytes.len();
        bytes.extend_from_slice(&period(number)[..rest.min(PERIOD)]);
    }
    bytes.freeze()
}

/// Returns whether a message has the content that [`content`] gave its sender.
fn is_content(sender: usize, number: u64, bytes: &[u8]) -> bool {
    let Some((mut head, body)) = bytes.split_at_checked(HEAD) else { return false };
    let is_head = head.get_u64() == number
        && head.get_u64() == sender as u64
        && head.get_u64() == bytes.len().max(HEAD) as u64;
    is_head && body.chunks(PERIOD).all(|chunk| *chunk == period(number)[..chunk.len()])
}

/// Totals of a run.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) delivered: u64,
    pub(crate) views: u64,
}

/// A cluster and everything around it.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Node>,
    /// The node at every place: the last that has started there.
    places: Vec<usize>,
    pub(crate) traffic: Traffic,
    pub(crate) totals: Totals,
    pub(crate) trace: u64,
    /// Faults are due: the caller checks this after every step.
    pub(crate) is_fault_due: bool,
    /// The bug of all stacks.
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<consort_group::InjectedBug>,
    config: StackConfig,
    /// The cache that the members have open, if their application is a grid.
    pub(crate) grid: Option<Grid>,
    /// The faults of members, for reports.
    faults: Vec<(Time, String)>,
    effects: EffectRunner,
    schedule: Schedule<SimEvent>,
}

impl World {
    pub(crate) fn new(seed: u64, config: StackConfig, traffic: Traffic) -> Self {
        Self {
            now: Time::ZERO,
            rng: Rng::new(seed),
            network: Network::new(),
            nodes: Vec::new(),
            places: Vec::new(),
            traffic,
            totals: Totals::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            is_fault_due: false,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
            config,
            grid: None,
            faults: Vec::new(),
            effects: EffectRunner::default(),
            schedule: Schedule::default(),
        }
    }

    fn at(&mut self, at: Time, event: SimEvent) {
        self.schedule.add(at, event);
    }

    /// Schedules a client's turn.
    pub(crate) fn schedule_turn(&mut self, at: Time, client: usize) {
        self.at(at, SimEvent::ClientTurn { client });
    }

    /// Schedules the turn of an iteration's reader.
    pub(crate) fn schedule_iterating_client(&mut self, at: Time, iterating_client: usize) {
        self.at(at, SimEvent::IterationTurn { iterating_client });
    }

    /// Schedules the turn of a listener's reader.
    pub(crate) fn schedule_listener_client(&mut self, at: Time, listener_client: usize) {
        self.at(at, SimEvent::ListenerTurn { listener_client });
    }

    /// Schedules a member's store.
    pub(crate) fn schedule_store(&mut self, at: Time, node: usize) {
        self.at(at, SimEvent::Store { node });
    }

    /// Schedules a clear.
    pub(crate) fn schedule_clear(&mut self, at: Time, bulk: usize) {
        self.at(at, SimEvent::Clear { bulk });
    }

    /// Schedules a fault.
    pub(crate) fn schedule_fault(&mut self, at: Time) {
        self.at(at, SimEvent::Fault);
    }

    /// Records an event of the story.
    pub(crate) fn note_story(&mut self, what: String) {
        self.faults.push((self.now, what));
    }

    /// Returns faults and views in the order in which they happened.
    pub(crate) fn story(&self) -> Vec<String> {
        let mut all = self.faults.clone();
        all.extend(self.grid.iter().flat_map(|grid| grid.story.clone()));
        for node in &self.nodes {
            for (at, view) in &node.log.views {
                let names = view.members().iter().map(|member| self.name_of(member)).collect::<Vec<_>>();
                let kind = if view.is_merge() { "merge view" } else { "view" };
                all.push((*at, format!("{}: {kind} {} [{}]", node.name, view.id().id, names.join(" "))));
            }
        }
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(at, what)| format!("{:>12.6}  {what}", at.0 as f64 / 1e9)).collect()
    }

    fn name_of(&self, member: &Address) -> &str {
        self.nodes.iter().find(|node| node.address == *member).map_or("?", |node| &node.name)
    }

    /// Returns whether all multicasts have one order.
    pub(crate) fn is_sequenced(&self) -> bool {
        self.config.protocols.iter().any(|protocol| protocol.short_name() == "SEQUENCER")
    }

    /// Adds words to the trace, a hash over all delivered and sent messages, in order (FNV-1a).
    pub(crate) fn note(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Starts a new member, which begins to join.
    pub(crate) fn start(&mut self) -> Result<usize, String> {
        self.start_at(self.places.len(), None)
    }

    /// Starts a node with the name and physical address of one that has ended: under an address of its own, or under its
    /// predecessor's.
    pub(crate) fn restart(&mut self, node: usize, keeps_address: bool) -> Result<usize, String> {
        let address = keeps_address.then(|| self.nodes[node].address.clone());
        self.start_at(self.nodes[node].place, address)
    }

    /// Returns the number of places.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns whether the node's place is unoccupied.
    pub(crate) fn may_restart(&self, node: usize) -> bool {
        self.places[self.nodes[node].place] == node && !self.nodes[node].is_alive()
    }

    /// Returns whether the node's address may be used again: no live member has ever had it in a view, and none of its
    /// packets is still in transit. JGroups' wire does not distinguish a removed member that comes back from one that begins
    /// anew. So a member that has had the address in a view would take the new node's multicasts for the old one's.
    pub(crate) fn is_unknown(&self, node: usize) -> bool {
        let one = &self.nodes[node];
        let has_seen = |node: &Node| node.log.views.iter().any(|(_, view)| view.contains(&one.address));
        one.ended.is_some_and(|at| self.now.since(at) > self.network.longest_way())
            && !self.nodes.iter().any(|node| node.is_alive() && has_seen(node))
    }

    fn start_at(&mut self, place: usize, address: Option<Address>) -> Result<usize, String> {
        let index = self.nodes.len();
        let how = match (place < self.places.len(), &address) {
            (false, _) => "starts",
            (true, None) => "starts again",
            (true, Some(_)) => "starts again under its old address",
        };
        let node = Node::new(place, address, &self.config, &mut self.rng, self.now)?;
        self.note_story(format!("{} {how}", node.name));
        self.nodes.push(node);
        self.places.resize(self.places.len().max(place + 1), index);
        self.places[place] = index;
        let own = self.nodes[index].clock(self.now);
        if let Some(stack) = &mut self.nodes[index].stack {
            #[cfg(feature = "injected-bugs")]
            if let Some(bug) = self.injected_bug {
                stack.inject_bug(bug);
            }
            stack.start(own);
            stack.handle_connect(own, "sim");
        }
        self.add_grid_member(index);
        self.work(index);
        self.plan_send(index);
        Ok(index)
    }

    /// Stops all traffic.
    pub(crate) fn stop_traffic(&mut self) -> Traffic {
        let traffic = self.traffic;
        self.traffic.interval = Duration::ZERO;
        traffic
    }

    /// Starts the traffic again.
    pub(crate) fn start_traffic(&mut self, traffic: Traffic) {
        self.traffic = traffic;
        (0..self.nodes.len()).for_each(|node| self.plan_send(node));
    }

    fn plan_send(&mut self, node: usize) {
        if !self.traffic.interval.is_zero() {
            let after = self.rng.duration(Duration::ZERO, self.traffic.interval * 2);
            self.at(self.now + after, SimEvent::Send { node });
        }
    }

    /// Runs the next event. If it is later than `until`, sets the time to `until` and returns false.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let Some((at, event)) = self.schedule.take(until) else {
            self.now = until;
            return false;
        };
        self.now = at;
        match event {
            SimEvent::Packet { place, from, bytes } => self.packet(self.places[place], from, bytes),
            SimEvent::Wake { node } => self.wakes(node),
            SimEvent::Outcome { node, token, outcome } => {
                let own = self.nodes[node].clock(self.now);
                if let Some(stack) = &mut self.nodes[node].stack {
                    stack.handle_done(own, token, outcome);
                    self.work(node);
                }
            }
            SimEvent::Consumed { node, src, is_multicast, credit, is_counted } => {
                if is_counted {
                    self.nodes[node].backlog.consume(&src, is_multicast, credit);
                }
                let own = self.nodes[node].clock(self.now);
                if let Some(stack) = &mut self.nodes[node].stack {
                    stack.handle_consumed(own, &src, is_multicast, credit);
                    self.work(node);
                }
            }
            SimEvent::Send { node } => self.send(node),
            SimEvent::ClientTurn { client } => self.turn(client),
            SimEvent::IterationTurn { iterating_client } => self.run_iterating_client(iterating_client),
            SimEvent::ListenerTurn { listener_client } => self.run_listener_client(listener_client),
            SimEvent::Store { node } => self.store_ready(node),
            SimEvent::Clear { bulk } => self.clear(bulk),
            SimEvent::Fault => self.is_fault_due = true,
        }
        true
    }

    /// Delivers a packet.
    pub(crate) fn packet(&mut self, to: usize, from: PhysAddr, bytes: Bytes) {
        let Some(node) = self.nodes.get_mut(to) else { return };
        if node.is_paused {
            // The kernel's buffer, which is finite.
            if node.waiting.len() < 10_000 {
                node.waiting.push((from, bytes));
            }
            return;
        }
        let own = node.clock(self.now);
        if let Some(stack) = &mut node.stack {
            stack.handle_receive(own, from, bytes);
            self.work(to);
        }
    }

    /// Runs a node's wakes of this moment, one after the other.
    fn wakes(&mut self, node: usize) {
        let count = self.nodes[node].wakes.take(self.now);
        for nth in 1..=count {
            if !self.wake(node) {
                // The remaining wakes find nothing to do either.
                self.nodes[node].wakes.plan_same(count - nth);
                break;
            }
        }
    }

    /// Returns false if there was nothing to do.
    fn wake(&mut self, node: usize) -> bool {
        let one = &mut self.nodes[node];
        one.wakes.begin();
        if one.is_paused {
            return false;
        }
        let (own, member_time) = (one.clock(self.now), one.member_clock(self.now));
        let Some(stack) = &mut one.stack else { return false };
        let mut has_work = stack.poll_timeout().is_some_and(|at| at <= own);
        stack.handle_timeout(own);
        if let Some(member) = &mut one.member {
            has_work |= member.node.poll_timeout().is_some_and(|at| at <= member_time);
            member.node.handle_timeout(member_time);
        }
        if has_work || self.has_pending_output(node) {
            self.work(node);
            return true;
        }
        self.plan_wake(node);
        false
    }

    /// Stops a member for a while.
    pub(crate) fn pause(&mut self, node: usize) {
        self.nodes[node].is_paused = true;
        self.nodes[node].pauses.push((self.now, None));
        self.note_story(format!("{} pauses", self.nodes[node].name));
    }

    /// Resumes a paused member, which receives all packets that have arrived meanwhile.
    pub(crate) fn resume(&mut self, node: usize) {
        self.nodes[node].is_paused = false;
        if let Some((_, end)) = self.nodes[node].pauses.last_mut() {
            *end = Some(self.now);
        }
        self.note_story(format!("{} goes on", self.nodes[node].name));
        for (from, bytes) in std::mem::take(&mut self.nodes[node].waiting) {
            self.packet(node, from, bytes);
        }
        self.wake(node);
    }

    /// Crashes a member.
    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].stack = None;
        self.nodes[node].ended = Some(self.now);
        if let Some(grid) = &mut self.grid {
            grid.lost.push((node, self.now));
        }
        self.note_story(format!("{} crashes", self.nodes[node].name));
        self.interrupt_store(node);
        let outcomes = self.effects.close_all(node);
        self.schedule_outcomes(outcomes);
    }

    /// Makes a member begin to leave: its cache first, if it has one.
    pub(crate) fn leave(&mut self, node: usize) {
        if self.leave_cache(node) {
            return;
        }
        self.note_story(format!("{} leaves", self.nodes[node].name));
        let own = self.nodes[node].clock(self.now);
        self.nodes[node].is_leaving = true;
        if let Some(stack) = &mut self.nodes[node].stack {
            stack.handle_disconnect(own);
            self.work(node);
        }
    }

    /// Sends a message of a member's application.
    fn send(&mut self, node: usize) {
        if self.traffic.interval.is_zero() || self.nodes[node].ended.is_some() {
            return;
        }
        self.plan_send(node);
        let one = &self.nodes[node];
        if one.is_paused || one.is_leaving || one.view().is_none() {
            return;
        }
        let members = one.view().map(|view| view.members().to_vec()).unwrap_or_default();
        let dest = if self.rng.chance(self.traffic.unicasts) {
            Some(members[self.rng.below(members.len() as u64) as usize].clone())
        } else {
            None
        };
        let size = HEAD + self.rng.below(self.traffic.size_max as u64 + 1) as usize;
        let own = self.nodes[node].clock(self.now);
        let now = self.now;
        let one = &mut self.nodes[node];
        let Some(stack) = &mut one.stack else { return };
        // An application waits when too much is queued, as the channel makes it wait.
        if stack.queued_bytes(dest.as_ref()) > 1_000_000 {
            return;
        }
        let numbers = one.log.sent.entry(dest.clone()).or_default();
        numbers.push(now);
        let bytes = content(node, numbers.len() as u64, size);
        stack.handle_send(own, Message::bytes(dest, bytes));
        self.work(node);
    }

    /// Runs a member's stack, and passes on its output.
    pub(crate) fn work(&mut self, node: usize) {
        let own = self.nodes[node].clock(self.now);
        for _ in 0..1_000 {
            let Some(stack) = &mut self.nodes[node].stack else { return };
            stack.run(own);
            let mut is_quiet = true;
            while let Some(indication) =
                self.nodes[node].stack.as_mut().and_then(|stack| stack.poll_indication())
            {
                is_quiet = false;
                self.indication(node, indication);
            }
            while let Some((token, effect)) =
                self.nodes[node].stack.as_mut().and_then(|stack| stack.poll_effect())
            {
                is_quiet = false;
                let (network, nodes, own) = (&self.network, &self.nodes, self.nodes[node].phys);
                let connects = |a: usize, b: usize| network.connects(nodes[a].place, nodes[b].place);
                let outcomes = self.effects.perform(node, own, token, effect, connects);
                self.schedule_outcomes(outcomes);
            }
            self.transmit(node);
            if is_quiet && !self.drain_outputs(node) {
                break;
            }
        }
        self.plan_wake(node);
    }

    fn schedule_outcomes(&mut self, all: Vec<NodeOutcome>) {
        for NodeOutcome { node, token, outcome, from } in all {
            let after = match from {
                Some(from) if from != node => {
                    // Connections keep their order and lose nothing: they have the longest delay.
                    if !self.network.connects(self.nodes[from].place, self.nodes[node].place) {
                        continue;
                    }
                    self.network.weather.delay_max
                }
                _ => Duration::ZERO,
            };
            self.at(self.now + after, SimEvent::Outcome { node, token, outcome });
        }
    }

    fn transmit(&mut self, node: usize) {
        while let Some(transmit) = self.nodes[node].stack.as_mut().and_then(|stack| stack.poll_transmit()) {
            let dests: Vec<usize> = match &transmit.dest {
                TransmitDest::One(to) => place_of(*to).into_iter().collect(),
                TransmitDest::Many(all) => all.iter().filter_map(|to| place_of(*to)).collect(),
                TransmitDest::Multicast => (0..self.places.len()).collect(),
            };
            let (own, count) = (self.nodes[node].place, self.places.len());
            let packet = transmit.whole();
            for place in dests.into_iter().filter(|&place| place != own && place < count) {
                self.totals.packets += 1;
                self.totals.bytes += packet.len() as u64;
                self.note(&[self.now.0, node as u64, place as u64, packet.len() as u64]);
                for after in self.network.pass(&mut self.rng, own, place) {
                    let (from, bytes) = (self.nodes[node].phys, packet.clone());
                    self.at(self.now + after, SimEvent::Packet { place, from, bytes });
                }
            }
        }
    }

    fn plan_wake(&mut self, node: usize) {
        let one = &mut self.nodes[node];
        let Some(stack) = &one.stack else { return };
        let member_time = one.member.as_ref().and_then(|member| member.node.poll_timeout());
        let member_time =
            member_time.map(|member_time| Time::ZERO + member_time.since(Time::ZERO + one.beginning));
        let Some(own) = stack.poll_timeout().into_iter().chain(member_time).min() else { return };
        let at = one.world_time(own).max(self.now);
        if one.wakes.plan(at) {
            self.at(at, SimEvent::Wake { node });
        }
    }

    fn indication(&mut self, node: usize, indication: Indication) {
        match indication {
            Indication::Batch(batch) => self.deliver(node, batch),
            Indication::Event(Event::View(view)) => {
                self.note(&[self.now.0, node as u64, view.id().id, view.len() as u64]);
                let now = self.now;
                self.totals.views += 1;
                self.nodes[node].log.views.push((now, view));
                self.deliver_view(node);
            }
            Indication::Event(Event::Disconnected) => {
                self.nodes[node].ended = Some(self.now);
                self.note_story(format!("{} has left", self.nodes[node].name));
                self.close_store(node);
                self.nodes[node].stack = None;
                let outcomes = self.effects.close_all(node);
                self.schedule_outcomes(outcomes);
            }
            Indication::Event(_) => {}
        }
    }

    fn deliver(&mut self, node: usize, batch: MessageBatch) {
        let now = self.now;
        for message in batch.messages {
            let Some(src) = message.src.clone() else { continue };
            let is_multicast = message.is_multicast();
            self.totals.delivered += 1;
            if self.nodes[node].member.is_some() {
                let payload = message.payload_bytes().cloned().filter(|_| !is_multicast);
                self.deliver_frame(node, &src, payload);
                // The messages of a grid do not contain their send times.
                self.consume(node, src, is_multicast, message.credit, false);
                continue;
            }
            let bytes = message.payload_bytes().cloned().unwrap_or_default();
            let word = |at: usize| {
                bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_be_bytes)
            };
            let (number, sender) = (word(0), word(8) as usize);
            let is_theirs = self.nodes.get(sender).is_some_and(|sender| sender.address == src);
            let is_whole = is_theirs && is_content(sender, number, &bytes);
            self.note(&[now.0, node as u64, number, u64::from(is_multicast)]);
            let one = &mut self.nodes[node];
            let nth_view = one.log.views.len();
            let got = Got { src: src.clone(), sender, is_multicast, number, is_whole, at: now, nth_view };
            one.log.got.push(got);
            let is_counted = self.has_counted(sender, node, is_multicast, number);
            self.consume(node, src, is_multicast, message.credit, is_counted);
        }
    }

    /// Returns whether flow control has had its sender count this message for this receiver. It does not know of members that
    /// are not in its view, which its multicasts reach all the same over UDP or once they are merged; and messages that wait
    /// for a member that leaves that view are sent.
    fn has_counted(&self, sender: usize, receiver: usize, is_multicast: bool, number: u64) -> bool {
        let (Some(sender), receiver) = (self.nodes.get(sender), &self.nodes[receiver].address) else {
            return false;
        };
        let dest = (!is_multicast).then(|| receiver.clone());
        let sent = sender.log.sent.get(&dest).zip(usize::try_from(number).ok());
        let Some(&sent) = sent.and_then(|(sent, number)| sent.get(number.checked_sub(1)?)) else {
            return false;
        };
        sender.views_between(sent, self.now).all(|view| view.contains(receiver))
    }

    /// Consumes a message after the application's delay, and returns its credits.
    fn consume(&mut self, node: usize, src: Address, is_multicast: bool, credit: u32, is_counted: bool) {
        if credit > 0 {
            let one = &mut self.nodes[node];
            if is_counted {
                one.backlog.add(one.stack.as_ref(), &src, is_multicast, credit.into());
            }
            one.busy_until = one.busy_until.max(self.now) + one.slowness;
            let at = one.busy_until;
            let credit = credit.into();
            self.at(at, SimEvent::Consumed { node, src, is_multicast, credit, is_counted });
        }
    }
}
