use std::time::Duration;

use bytes::Bytes;
use consort_group::config::StackConfig;
use consort_group::{
    Address, Effect, Event, Indication, Message, MessageBatch, Outcome, PhysAddr, RelayEvent, Rng, Time,
    Token, TransmitDest,
};

use crate::effects::{EffectRunner, NodeOutcome};
use crate::message_body::show_body;
use crate::network::Network;
use crate::node::{CrashProof, Node, place_of};
use crate::schedule::Schedule;

/// The program above the members' stacks. Its functions get the whole world, because most of them act on a
/// member's stack as well.
pub(crate) trait Application: Sized {
    type Event;

    /// A slow member's time for a message.
    const SLOWNESS_MAX_MICROS: u64;

    fn handle_event(world: &mut World<Self>, event: Self::Event);

    fn deliver(world: &mut World<Self>, node: usize, src: Address, message: &Message);

    fn node_added(_: &mut World<Self>, _node: usize) {}

    fn node_started(_: &mut World<Self>, _node: usize) {}

    fn deliver_view(_: &mut World<Self>, _node: usize) {}

    fn relay(_: &mut World<Self>, _node: usize, _event: RelayEvent) {}

    fn poll_timeout(_: &World<Self>, _node: usize) -> Option<Time> {
        None
    }

    fn handle_timeout(_: &mut World<Self>, _node: usize) -> bool {
        false
    }

    /// [`Application::drain_outputs`] would act although no event has happened.
    fn has_pending_output(_: &World<Self>, _node: usize) -> bool {
        false
    }

    fn drain_outputs(_: &mut World<Self>, _node: usize) -> bool {
        false
    }

    /// The stack follows. Returns false if the application does not have to leave.
    fn leave(_: &mut World<Self>, _node: usize) -> bool {
        false
    }

    fn node_crashed(_: &mut World<Self>, _node: usize) {}

    fn node_left(_: &mut World<Self>, _node: usize) {}

    fn may_crash(_: &World<Self>) -> bool {
        true
    }

    fn may_part(_: &World<Self>) -> bool {
        true
    }

    fn may_leave(_: &World<Self>, _node: usize) -> bool {
        true
    }

    fn may_start(_: &World<Self>) -> bool {
        true
    }

    fn story(&self) -> Vec<(Time, String)> {
        Vec::new()
    }
}

pub(crate) enum SimEvent<E> {
    /// The packet is for the node that is there by then.
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
    Application(E),
    Fault,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) delivered: u64,
    pub(crate) views: u64,
}

/// The cluster of members that are not in sites.
const CLUSTER: &str = "sim";

pub(crate) struct World<A: Application> {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Node>,
    /// The last node at each place.
    places: Vec<usize>,
    pub(crate) totals: Totals,
    pub(crate) trace: u64,
    /// The caller checks this after every step.
    pub(crate) is_fault_due: bool,
    #[cfg(feature = "injected-bugs")]
    pub(crate) injected_bug: Option<consort_group::InjectedBug>,
    config: StackConfig,
    pub(crate) app: A,
    faults: Vec<(Time, String)>,
    pub(crate) effects: EffectRunner,
    /// Absent without faults of connections.
    pub(crate) connection_rng: Option<Rng>,
    schedule: Schedule<SimEvent<A::Event>>,
}

impl<A: Application> World<A> {
    pub(crate) fn new(rng: Rng, config: StackConfig, app: A) -> Self {
        Self {
            now: Time::ZERO,
            rng,
            network: Network::new(),
            nodes: Vec::new(),
            places: Vec::new(),
            totals: Totals::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            is_fault_due: false,
            #[cfg(feature = "injected-bugs")]
            injected_bug: None,
            config,
            app,
            faults: Vec::new(),
            effects: EffectRunner::default(),
            connection_rng: None,
            schedule: Schedule::default(),
        }
    }

    pub(crate) fn at(&mut self, at: Time, event: SimEvent<A::Event>) {
        self.schedule.add(at, event);
    }

    pub(crate) fn schedule(&mut self, at: Time, event: A::Event) {
        self.at(at, SimEvent::Application(event));
    }

    pub(crate) fn schedule_fault(&mut self, at: Time) {
        self.at(at, SimEvent::Fault);
    }

    pub(crate) fn note_story(&mut self, what: String) {
        self.faults.push((self.now, what));
    }

    pub(crate) fn story(&self) -> Vec<String> {
        let mut all = self.faults.clone();
        all.extend(self.app.story());
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

    /// The trace is a hash over all delivered and sent messages, in order (FNV-1a).
    pub(crate) fn note(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn start(&mut self) -> Result<usize, String> {
        self.start_at(self.places.len(), None)
    }

    /// A member of another cluster.
    pub(crate) fn start_in(
        &mut self,
        cluster: &'static str,
        config: &StackConfig,
        address: Option<Address>,
    ) -> Result<usize, String> {
        self.start_with((config, cluster), self.places.len(), address)
    }

    /// Its address stays or is a new one.
    pub(crate) fn restart(&mut self, node: usize, keeps_address: bool) -> Result<usize, String> {
        let address = keeps_address.then(|| self.nodes[node].address.clone());
        self.start_at(self.nodes[node].place, address)
    }

    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn node_at(&self, place: usize) -> usize {
        self.places[place]
    }

    pub(crate) fn may_restart(&self, node: usize) -> bool {
        self.places[self.nodes[node].place] == node && !self.nodes[node].is_alive()
    }

    /// No live member has ever had the address in a view, and none of its packets is in transit. JGroups' wire
    /// does not distinguish a removed member that comes back from one that begins anew: the new node's
    /// multicasts would be taken for the old one's.
    pub(crate) fn is_unknown(&self, node: usize) -> bool {
        let one = &self.nodes[node];
        let has_seen = |node: &Node| node.log.views.iter().any(|(_, view)| view.contains(&one.address));
        one.ended.is_some_and(|at| self.now.since(at) > self.network.longest_way())
            && !self.nodes.iter().any(|node| node.is_alive() && has_seen(node))
    }

    fn start_at(&mut self, place: usize, address: Option<Address>) -> Result<usize, String> {
        let config = self.config.clone();
        self.start_with((&config, CLUSTER), place, address)
    }

    fn start_with(
        &mut self,
        (config, cluster): (&StackConfig, &'static str),
        place: usize,
        address: Option<Address>,
    ) -> Result<usize, String> {
        let index = self.nodes.len();
        let how = match (place < self.places.len(), &address) {
            (false, _) => "starts",
            (true, None) => "starts again",
            (true, Some(_)) => "starts again under its old address",
        };
        let node = Node::new(place, address, (config, cluster), &mut self.rng, self.now)?;
        self.note_story(format!("{} {how}", node.name));
        self.nodes.push(node);
        self.places.resize(self.places.len().max(place + 1), index);
        self.places[place] = index;
        self.effects.strangers.remove(&self.nodes[index].phys);
        let own = self.nodes[index].clock(self.now);
        if let Some(stack) = &mut self.nodes[index].stack {
            #[cfg(feature = "injected-bugs")]
            if let Some(bug) = self.injected_bug {
                stack.inject_bug(bug);
            }
            stack.start(own);
            stack.handle_connect(own, cluster);
        }
        A::node_added(self, index);
        self.work(index);
        A::node_started(self, index);
        Ok(index)
    }

    /// Returns false, and sets the time to `until`, if the next event is later.
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
            SimEvent::Application(event) => A::handle_event(self, event),
            SimEvent::Fault => self.is_fault_due = true,
        }
        true
    }

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

    fn wake(&mut self, node: usize) -> bool {
        let one = &mut self.nodes[node];
        one.wakes.begin();
        if one.is_paused {
            return false;
        }
        let own = one.clock(self.now);
        let Some(stack) = &mut one.stack else { return false };
        let mut has_work = stack.poll_timeout().is_some_and(|at| at <= own);
        stack.handle_timeout(own);
        has_work |= A::handle_timeout(self, node);
        if has_work || A::has_pending_output(self, node) {
            self.work(node);
            return true;
        }
        self.plan_wake(node);
        false
    }

    pub(crate) fn pause(&mut self, node: usize) {
        self.nodes[node].is_paused = true;
        self.nodes[node].pauses.push((self.now, None));
        self.note_story(format!("{} pauses", self.nodes[node].name));
    }

    /// The member receives all packets that have arrived meanwhile.
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

    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].stack = None;
        self.nodes[node].ended = Some(self.now);
        self.note_story(format!("{} crashes", self.nodes[node].name));
        A::node_crashed(self, node);
        let outcomes = self.effects.close_all(node);
        self.schedule_outcomes(outcomes);
    }

    /// The application leaves first, if it has to.
    pub(crate) fn leave(&mut self, node: usize) {
        if A::leave(self, node) {
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
                if let Effect::ProbePort { to, timeout } = effect {
                    self.probe_port(node, token, to, timeout);
                    continue;
                }
                let (network, nodes, own) = (&self.network, &self.nodes, self.nodes[node].phys);
                let connects = |a: usize, b: usize| {
                    nodes[a].cluster == nodes[b].cluster && network.connects(nodes[a].place, nodes[b].place)
                };
                let outcomes = self.effects.perform(node, own, token, effect, connects);
                self.schedule_outcomes(outcomes);
            }
            self.transmit(node);
            if is_quiet && !A::drain_outputs(self, node) {
                break;
            }
        }
        self.plan_wake(node);
    }

    pub(crate) fn schedule_outcomes(&mut self, all: Vec<NodeOutcome>) {
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
            if self.nodes[node].is_encrypted && show_body(&packet) {
                self.nodes[node].readable_packets += 1;
            }
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
        let application_time = A::poll_timeout(self, node);
        let one = &mut self.nodes[node];
        let Some(stack) = &one.stack else { return };
        let Some(own) = stack.poll_timeout().into_iter().chain(application_time).min() else { return };
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
                A::deliver_view(self, node);
            }
            Indication::Event(Event::Disconnected) => {
                self.nodes[node].ended = Some(self.now);
                self.note_story(format!("{} has left", self.nodes[node].name));
                A::node_left(self, node);
                self.nodes[node].stack = None;
                let outcomes = self.effects.close_all(node);
                self.schedule_outcomes(outcomes);
            }
            Indication::Event(Event::Crashed(members)) => self.crashed(node, members),
            Indication::Event(Event::Relay(event)) => A::relay(self, node, *event),
            Indication::Event(_) => {}
        }
    }

    fn crashed(&mut self, node: usize, members: Vec<Address>) {
        for member in members {
            let alive = self.nodes.iter().position(|one| one.address == member && one.is_alive());
            let name = self.name_of(&member).to_owned();
            self.note_story(format!("{}: the crash of {name} is proven", self.nodes[node].name));
            self.nodes[node].log.proofs.push(CrashProof { at: self.now, name, is_wrong: alive.is_some() });
        }
    }

    fn deliver(&mut self, node: usize, batch: MessageBatch) {
        for message in batch.messages {
            let Some(src) = message.src.clone() else { continue };
            self.totals.delivered += 1;
            A::deliver(self, node, src, &message);
        }
    }

    /// Waits for the application's delay, and returns the message's credits.
    pub(crate) fn consume(
        &mut self,
        node: usize,
        src: Address,
        is_multicast: bool,
        credit: u32,
        is_counted: bool,
    ) {
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
