//! The stack: its layers, and the sweep that moves batches through them. One sweep after several inputs fills packets
//! better than one for each.

use std::sync::Arc;

use bytes::Bytes;

use crate::credit::CreditReturn;
use crate::protocol::{Slot, report_consumed};
use crate::queues::{Item, Queues};
use crate::trace::Direction;
use crate::{
    Address, AddressBook, Answer, Cx, Drops, Effect, Event, HeaderIds, Indication, Message, MessageBatch,
    Outcome, Pass, PhysAddr, ProbeOut, Protocol, ProtocolId, Query, Rng, Shared, StackCount, Time, Timers,
    Token, Transmit, Version,
};

/// After these rounds layers are assumed to answer each other forever. The deepest known chain (a join through
/// loopback) takes fewer than 20.
const SWEEP_ROUNDS_MAX: usize = 100_000;

/// A stack's inputs besides its layers.
#[derive(Clone, Debug)]
pub struct StackSetup {
    /// The local member, by convention random.
    pub local: Address,
    /// Its logical name.
    pub name: Arc<str>,
    /// The edge's physical address.
    pub phys: PhysAddr,
    /// Whether the edge can multicast.
    pub has_multicast: bool,
    /// The seed of all randomness.
    pub seed: u64,
    /// The version sent and required.
    pub version: Version,
}

/// A member's protocol stack as a state machine.
///
/// `handle_*` queue inputs and take the time, which must not go backwards. [`Stack::run`] sweeps up and down until
/// all queues are empty. `poll_*` are outputs, to be drained after it. All others read.
pub struct Stack {
    slots: Vec<Slot>,
    queues: Queues,
    timers: Timers,
    shared: Shared,
    next_uid: u16,
    now: Time,
    is_output_aborted: bool,
}

impl Stack {
    /// Creates a stack, transport first. Call [`Stack::start`] before any input.
    ///
    /// # Panics
    ///
    /// If `layers` is empty.
    pub fn new(setup: StackSetup, layers: Vec<Box<dyn Protocol>>) -> Self {
        assert!(!layers.is_empty(), "a stack has at least a transport");
        let mut book = AddressBook::default();
        book.learn(&setup.local, Some(&setup.name), Some(setup.phys));
        let slots: Vec<Slot> =
            layers.into_iter().zip(0..).map(|(protocol, uid)| Slot::new(uid, protocol)).collect();
        Self {
            queues: Queues::with_layers(slots.len()),
            next_uid: slots.len() as u16,
            slots,
            timers: Timers::default(),
            shared: Shared {
                local: setup.local,
                name: setup.name,
                phys: setup.phys,
                cluster: None,
                view: None,
                book,
                rng: Rng::new(setup.seed),
                version: setup.version,
                has_multicast: setup.has_multicast,
                clock_origin: 0,
                drops: Drops::default(),
                #[cfg(feature = "injected-bugs")]
                injected_bug: None,
            },
            now: Time::ZERO,
            is_output_aborted: false,
        }
    }

    // --- inputs ---

    /// Sets the system's monotonic clock at [`Time::ZERO`], in nanoseconds, for PERF.
    pub fn set_clock_origin(&mut self, nanos: u64) {
        self.shared.clock_origin = nanos;
    }

    /// Starts all layers, bottom up.
    pub fn start(&mut self, now: Time) {
        self.now = now;
        for index in 0..self.slots.len() {
            self.with(index, |protocol, cx| protocol.start(cx));
        }
    }

    /// Stops all layers, top down, and disarms all timers. Their packets are still polled.
    pub fn stop(&mut self, now: Time) {
        self.now = now;
        for index in (0..self.slots.len()).rev() {
            self.with(index, |protocol, cx| protocol.stop(cx));
        }
        self.run(now);
        self.timers.clear();
    }

    /// Begins to join; [`Event::Connected`] reports the result.
    pub fn handle_connect(&mut self, now: Time, cluster: &str) {
        self.now = now;
        self.shared.cluster = Some(cluster.into());
        self.handle_event(now, Event::Connect);
    }

    /// Begins to leave; [`Event::Disconnected`] reports the end.
    pub fn handle_disconnect(&mut self, now: Time) {
        self.handle_event(now, Event::Disconnect);
    }

    /// Handles an event such as [`Event::GetState`] or [`Event::ProvideState`].
    pub fn handle_event(&mut self, now: Time, event: Event) {
        self.now = now;
        self.queues.push_down_event(self.slots.len() - 1, event);
    }

    /// Handles a packet without TCP's length word.
    pub fn handle_receive(&mut self, now: Time, from: PhysAddr, packet: Bytes) {
        self.now = now;
        self.with(0, |protocol, cx| protocol.receive(cx, from, packet));
    }

    /// Handles the loss of a connection that neither this member nor the peer closed in order.
    ///
    /// `is_end_of_stream`: the peer's host ended it, as it does when a process dies; a reset did not.
    pub fn handle_peer_lost(&mut self, now: Time, peer: PhysAddr, is_end_of_stream: bool) {
        self.now = now;
        self.with(0, |protocol, cx| protocol.peer_lost(cx, peer, is_end_of_stream));
    }

    /// Handles the application's message; its ticket comes back with [`Event::RsvpDone`], at once if no layer waits.
    pub fn handle_send(&mut self, now: Time, message: Message) {
        self.now = now;
        let is_awaited = || self.slots.iter().any(|slot| slot.protocol.id() == ProtocolId::RSVP);
        if message.ticket != 0 && !is_awaited() {
            let done = Event::RsvpDone { ticket: message.ticket, is_complete: true };
            self.queues.indications.push_back(Indication::Event(done));
        }
        self.queues.push_down_message(self.slots.len() - 1, message);
    }

    /// Fires the due timers. One armed meanwhile fires in the next call, or an interval of zero would loop forever.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        for _ in 0..self.timers.due(now) {
            let Some((uid, key)) = self.timers.pop_due(now) else { break };
            if let Some(index) = self.index_of(uid) {
                self.with(index, |protocol, cx| protocol.timer(cx, key));
            }
        }
    }

    /// Handles the outcome of an effect.
    pub fn handle_done(&mut self, now: Time, token: Token, outcome: Outcome) {
        self.now = now;
        if let Some(index) = self.index_of(token.layer) {
            self.with(index, |protocol, cx| protocol.done(cx, token, outcome));
        }
    }

    /// Records that messages of `src` with `credit` bytes ([`Message::credit`]) were consumed.
    pub fn handle_consumed(&mut self, now: Time, src: &Address, is_multicast: bool, credit: u64) {
        self.now = now;
        if credit == 0 {
            return;
        }
        let mut returning = CreditReturn::new(src, is_multicast, credit);
        for index in (0..self.slots.len()).rev() {
            self.with(index, |protocol, cx| report_consumed(protocol, cx, &mut returning));
        }
    }

    // --- work ---

    /// Sweeps until no item is queued, then flushes.
    pub fn run(&mut self, now: Time) {
        self.now = now;
        let count = self.slots.len();
        for round in 0.. {
            assert!(round < SWEEP_ROUNDS_MAX, "layers keep answering each other");
            for index in 0..count {
                if self.queues.up.is_empty() {
                    break;
                }
                while let Some(item) = self.queues.up.pop(index) {
                    self.step_up(index, item);
                }
            }
            // Layers send to those below them, whose turn is later: the queue before each layer ends up
            // empty.
            for index in (0..count).rev() {
                if self.queues.down.is_empty() {
                    break;
                }
                while let Some(item) = self.queues.down.pop(index) {
                    self.step_down(index, item);
                }
            }
            debug_assert!(self.queues.down.is_empty());
            if self.queues.up.is_empty() {
                break;
            }
        }
        for index in (0..count).rev() {
            if self.slots[index].flushes {
                self.with(index, |protocol, cx| protocol.flush(cx));
            }
        }
    }

    fn step_up(&mut self, index: usize, item: Item) {
        match item {
            Item::Batch(batch) => self.climb(index, batch),
            Item::Event(event) => {
                if let Some(traced) = self.slots[index].traced() {
                    traced.event(&self.shared, Direction::Up, &event);
                }
                let pass = self.with(index, |protocol, cx| protocol.up_event(cx, &event));
                if pass == Pass::On {
                    self.queues.push_up_event(index + 1, event);
                }
            }
        }
    }

    /// It ends where an item waits before the next layer.
    fn climb(&mut self, mut index: usize, mut batch: MessageBatch) {
        let mut headers = HeaderIds::from_batch(&batch);
        while index < self.slots.len() {
            self.trace_up(index, &batch);
            let next = index + 1;
            let inbox = self.queues.up.len_of(next);
            let at = inbox.unwrap_or(self.queues.indications.len());
            if self.slots[index].protocol.wants(&batch, headers) {
                self.queues.sealed_up = Some((next, at));
                self.with(index, |protocol, cx| protocol.up(cx, &mut batch));
                self.queues.sealed_up = None;
                if batch.is_empty() {
                    return self.queues.recycle(batch);
                }
                if !self.slots[index].protocol.only_takes() {
                    headers = HeaderIds::from_batch(&batch);
                }
                debug_assert!(
                    headers.covers(HeaderIds::from_batch(&batch)),
                    "{:?}",
                    self.slots[index].protocol.name()
                );
            }
            // Items that wait before the next layer go first; messages that this layer delivered during the
            // call go after.
            if at > 0 && inbox.is_some() {
                return self.queues.up.insert(next, at, Item::Batch(batch));
            }
            if next == self.slots.len() {
                let indications = &mut self.queues.indications;
                return indications.insert(at.min(indications.len()), Indication::Batch(batch));
            }
            index = next;
        }
    }

    fn step_down(&mut self, index: usize, item: Item) {
        match item {
            Item::Batch(mut batch) => {
                self.trace_down(index, &batch);
                let at = index.checked_sub(1).and_then(|below| self.queues.down.len_of(below)).unwrap_or(0);
                self.queues.sealed_down = index.checked_sub(1).map(|below| (below, at));
                self.with(index, |protocol, cx| protocol.down(cx, &mut batch));
                self.queues.sealed_down = None;
                match index.checked_sub(1) {
                    Some(below) if !batch.is_empty() => {
                        self.queues.down.insert(below, at, Item::Batch(batch));
                    }
                    _ => self.queues.recycle(batch),
                }
            }
            Item::Event(event) => {
                if let Some(traced) = self.slots[index].traced() {
                    traced.event(&self.shared, Direction::Down, &event);
                }
                let pass = self.with(index, |protocol, cx| protocol.down_event(cx, &event));
                if let Some(below) = index.checked_sub(1)
                    && pass == Pass::On
                {
                    self.queues.push_down_event(below, event);
                }
            }
        }
    }

    fn trace_up(&self, index: usize, batch: &MessageBatch) {
        if index == 1
            && let Some(transport) = self.slots[0].traced()
        {
            transport.batch(&self.shared, Direction::Up, batch);
        }
        if let Some(traced) = self.slots[index].traced() {
            traced.batch(&self.shared, Direction::Up, batch);
        }
    }

    fn trace_down(&self, index: usize, batch: &MessageBatch) {
        let above = self.slots.get(index + 1).and_then(Slot::traced);
        let transport = if index == 0 { self.slots[0].traced() } else { None };
        for traced in [above, transport].into_iter().flatten() {
            traced.batch(&self.shared, Direction::Down, batch);
        }
    }

    fn with<R>(&mut self, index: usize, call: impl FnOnce(&mut dyn Protocol, &mut Cx<'_>) -> R) -> R {
        let (below, rest) = self.slots.split_at_mut(index);
        let (slot, above) = rest.split_first_mut().expect("the index of a layer");
        let mut cx = Cx {
            now: self.now,
            index,
            uid: slot.uid,
            name: slot.name,
            shared: &mut self.shared,
            queues: &mut self.queues,
            timers: &mut self.timers,
            below,
            above,
        };
        call(slot.protocol.as_mut(), &mut cx)
    }

    // --- outputs ---

    /// Returns the next packet for the network.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if self.is_output_aborted {
            self.queues.transmits.clear();
        }
        self.queues.transmits.pop_front()
    }

    /// Returns the next indication for the application.
    pub fn poll_indication(&mut self) -> Option<Indication> {
        self.queues.indications.pop_front()
    }

    /// Returns the next effect for the driver.
    pub fn poll_effect(&mut self) -> Option<(Token, Effect)> {
        self.queues.effects.pop_front()
    }

    /// Returns when to call [`Stack::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    // --- reading and managing ---

    /// Injects a bug.
    #[cfg(feature = "injected-bugs")]
    pub fn inject_bug(&mut self, bug: crate::InjectedBug) {
        self.shared.injected_bug = Some(bug);
    }

    /// Returns the shared state.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the bytes of messages that wait for credits or window room.
    pub fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        // Plain addresses are what the layers below know.
        let replaced = dest.filter(|dest| dest.is_of_site());
        let hop =
            replaced.and_then(|dest| self.slots.iter().rev().find_map(|slot| slot.protocol.first_hop(dest)));
        let dest = hop.as_ref().or(dest);
        self.slots.iter().map(|slot| slot.protocol.queued_bytes(dest)).sum()
    }

    /// Returns how many bytes may wait before the application has to; `None`: unlimited.
    pub fn hold_limit(&self, is_multicast: bool) -> Option<u64> {
        self.slots.iter().filter_map(|slot| slot.protocol.hold_limit(is_multicast)).max()
    }

    /// Queries the layers, top down.
    pub fn ask(&self, query: &Query<'_>) -> Option<Answer> {
        self.slots.iter().rev().find_map(|slot| slot.protocol.answer(query))
    }

    /// Returns the layers, transport first.
    pub fn layers(&self) -> impl Iterator<Item = (&'static str, ProtocolId)> {
        self.slots.iter().map(|slot| (slot.protocol.name(), slot.protocol.id()))
    }

    /// Returns a layer's attributes, if it exists.
    pub fn probe(&self, layer: &str) -> Option<ProbeOut> {
        let slot = self.slots.iter().find(|slot| slot.protocol.name() == layer)?;
        let mut out = ProbeOut::default();
        slot.protocol.probe(&mut out);
        out.put("level", slot.trace.level());
        Some(out)
    }

    /// Returns the layers' counts, transport first.
    pub fn counts(&self) -> Vec<(&'static str, StackCount, u64)> {
        let of = |protocol: &dyn Protocol| {
            let name = protocol.name();
            protocol.counts().into_iter().map(move |(count, value)| (name, count, value))
        };
        self.slots.iter().flat_map(|slot| of(slot.protocol.as_ref())).collect()
    }

    /// Returns an attribute, if it exists.
    pub fn attribute(&self, layer: &str, name: &str) -> Option<String> {
        let attributes = self.probe(layer)?.attributes;
        attributes.into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// Changes an attribute. `None`: no such layer or attribute. Every layer has a `level` ([`crate::trace`]).
    pub fn set_attribute(&mut self, layer: &str, name: &str, value: &str) -> Option<Result<(), String>> {
        let slot = self.slots.iter_mut().find(|slot| slot.protocol.name() == layer)?;
        if name != "level" {
            return slot.protocol.set_attribute(name, value);
        }
        Some(slot.trace.set(value))
    }

    /// Returns a layer's operations, if it exists.
    pub fn operations(&self, layer: &str) -> Option<&'static [&'static str]> {
        let slot = self.slots.iter().find(|slot| slot.protocol.name() == layer)?;
        Some(slot.protocol.operations())
    }

    /// Runs an operation. `None`: no such layer or operation.
    pub fn operation(
        &mut self,
        now: Time,
        layer: &str,
        name: &str,
        args: &[&str],
    ) -> Option<Result<String, String>> {
        self.now = now;
        let index = self.slots.iter().position(|slot| slot.protocol.name() == layer)?;
        self.with(index, |protocol, cx| protocol.operation(cx, name, args))
    }

    /// Inserts and starts a layer above the named one; false if there is none.
    pub fn insert_above(&mut self, now: Time, layer: &str, protocol: Box<dyn Protocol>) -> bool {
        self.now = now;
        let Some(below) = self.slots.iter().position(|slot| slot.protocol.name() == layer) else {
            return false;
        };
        let index = below + 1;
        self.slots.insert(index, Slot::new(self.next_uid, protocol));
        self.next_uid += 1;
        self.queues.up.insert_layer(index);
        self.queues.down.insert_layer(index);
        self.with(index, |protocol, cx| protocol.start(cx));
        true
    }

    /// Stops and removes a layer, except the transport. Returns whether it did.
    pub fn remove(&mut self, now: Time, layer: &str) -> bool {
        self.run(now);
        let Some(index) =
            self.slots.iter().position(|slot| slot.protocol.name() == layer).filter(|&at| at > 0)
        else {
            return false;
        };
        self.with(index, |protocol, cx| protocol.stop(cx));
        self.run(now);
        self.slots.remove(index);
        self.queues.up.remove_layer(index);
        self.queues.down.remove_layer(index);
        true
    }

    /// Discards all output from now on, as if the process had died; the driver closes the sockets.
    pub fn abort_output(&mut self, now: Time) {
        self.now = now;
        self.is_output_aborted = true;
        self.timers.clear();
    }

    fn index_of(&self, uid: u16) -> Option<usize> {
        if self.slots.get(usize::from(uid)).is_some_and(|slot| slot.uid == uid) {
            return Some(usize::from(uid));
        }
        self.slots.iter().position(|slot| slot.uid == uid)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocols::rsvp::{Rsvp, RsvpConfig};
    use crate::{Flags, Payload, TimerKey, Uuid};

    /// Loops messages back, as a transport without peers does.
    struct Loop;

    impl Protocol for Loop {
        fn name(&self) -> &'static str {
            "LOOP"
        }
        fn id(&self) -> ProtocolId {
            ProtocolId::TP
        }
        fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
            for mut message in batch.messages.drain(..) {
                message.src = Some(cx.local().clone());
                cx.deliver(message);
            }
        }
    }

    /// It keeps every second message.
    struct Echo;

    impl Protocol for Echo {
        fn name(&self) -> &'static str {
            "ECHO"
        }
        fn id(&self) -> ProtocolId {
            ProtocolId(2000)
        }
        fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
            let mut extra = Message::new(None, Payload::Long(-1));
            extra.src = batch.src().cloned();
            cx.deliver(extra);
            let mut nth = 0;
            batch.messages.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
    }

    /// The timer has no interval.
    struct Restless(u32);

    impl Protocol for Restless {
        fn name(&self) -> &'static str {
            "RESTLESS"
        }
        fn id(&self) -> ProtocolId {
            ProtocolId(2001)
        }
        fn start(&mut self, cx: &mut Cx<'_>) {
            cx.arm(TimerKey(0), Duration::ZERO);
        }
        fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
            self.0 += 1;
            cx.arm(key, Duration::ZERO);
        }
        fn probe(&self, out: &mut ProbeOut) {
            out.put("fired", self.0);
        }
    }

    #[test]
    fn a_timer_without_interval_fires_once_per_call() {
        let mut stack = stack();
        assert!(stack.insert_above(Time::ZERO, "ECHO", Box::new(Restless(0))));
        for _ in 0..3 {
            stack.handle_timeout(Time(7));
        }
        let fired = stack.probe("RESTLESS").unwrap().attributes;
        assert_eq!(fired[0], ("fired".to_owned(), "3".to_owned()));
        assert_eq!(stack.poll_timeout(), Some(Time(7)));
    }

    fn stack() -> Stack {
        let setup = StackSetup {
            local: Address::Uuid(Uuid { most: 1, least: 1 }),
            name: "A".into(),
            phys: PhysAddr { ip: None, scope_id: 0, port: 1 },
            has_multicast: false,
            seed: 1,
            version: Version::V5_5_7,
        };
        Stack::new(setup, vec![Box::new(Loop), Box::new(Echo)])
    }

    #[test]
    fn a_ticket_returns_when_no_layer_waits_for_acknowledgements() {
        let mut stack = stack();
        stack.start(Time::ZERO);
        let other = Address::Uuid(Uuid { most: 2, least: 2 });
        let mut message = Message::empty(Some(other)).with_flags(Flags::RSVP);
        message.ticket = 7;
        stack.handle_send(Time::ZERO, message.clone());
        assert_eq!(done(&mut stack), [(7, true)]);

        assert!(stack.insert_above(Time::ZERO, "ECHO", Box::new(Rsvp::new(RsvpConfig::default()))));
        stack.handle_send(Time::ZERO, message);
        assert_eq!(done(&mut stack), [], "it waits");
        assert!(stack.remove(Time::ZERO, "RSVP"));
        assert_eq!(done(&mut stack), [(7, false)]);
    }

    fn done(stack: &mut Stack) -> Vec<(u32, bool)> {
        stack.run(Time::ZERO);
        let indications = std::iter::from_fn(|| stack.poll_indication());
        let done = indications.filter_map(|indication| match indication {
            Indication::Event(Event::RsvpDone { ticket, is_complete }) => Some((ticket, is_complete)),
            _ => None,
        });
        done.collect()
    }

    #[test]
    fn remaining_batch_precedes_messages_delivered_by_the_layer() {
        let mut stack = stack();
        stack.start(Time::ZERO);
        for value in 0..4 {
            stack.handle_send(Time::ZERO, Message::new(None, Payload::Long(value)));
        }
        stack.run(Time::ZERO);
        let mut values = Vec::new();
        while let Some(Indication::Batch(batch)) = stack.poll_indication() {
            values.extend(batch.messages.into_iter().map(|message| message.payload));
        }
        assert_eq!(values, [Payload::Long(0), Payload::Long(2), Payload::Long(-1)]);
    }

    #[test]
    fn a_layer_can_be_removed_and_inserted_while_running() {
        let mut stack = stack();
        stack.start(Time::ZERO);
        assert!(stack.remove(Time::ZERO, "ECHO"));
        assert!(!stack.remove(Time::ZERO, "LOOP"), "the transport stays");
        stack.handle_send(Time::ZERO, Message::new(None, Payload::Long(7)));
        stack.run(Time::ZERO);
        assert!(matches!(stack.poll_indication(), Some(Indication::Batch(batch)) if batch.len() == 1));
        assert!(stack.insert_above(Time::ZERO, "LOOP", Box::new(Echo)));
        assert_eq!(stack.layers().map(|(name, _)| name).collect::<Vec<_>>(), ["LOOP", "ECHO"]);
    }
}
