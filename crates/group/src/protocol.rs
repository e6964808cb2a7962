use std::time::Duration;

use bytes::Bytes;

use crate::config::Properties;
use crate::credit::CreditReturn;
use crate::queues::Queues;
use crate::trace::{LayerTrace, Switch};
use crate::{
    Address, AddressBook, Answer, Control, DropReason, Effect, Event, HeaderIds, Message, MessageBatch,
    Outcome, OwedCredits, Pass, PhysAddr, ProtocolId, Query, Rng, Severity, Shared, StackCount, Time,
    TimerKey, Timers, Token, Transmit, View,
};

/// The attributes of a layer.
#[derive(Default, Debug)]
pub struct ProbeOut {
    /// Names and values, in order.
    pub attributes: Vec<(String, String)>,
}

impl ProbeOut {
    /// Adds an attribute.
    pub fn put(&mut self, name: &str, value: impl ToString) {
        self.attributes.push((name.to_owned(), value.to_string()));
    }

    /// Adds a configuration's properties.
    pub fn put_all(&mut self, config: &impl Properties) {
        self.attributes.extend(config.show().into_iter().map(|(name, value)| (name.to_owned(), value)));
    }
}

/// One layer of the stack. By default every method lets traffic pass.
///
/// A handler edits the batch: the messages left in it go to the next layer. New messages are queued through [`Cx`] and never
/// re-enter the caller: `cx.send` towards the network, `cx.deliver` towards the application. Messages delivered by `up`, or sent
/// by `down`, follow those left in the batch.
pub trait Protocol: Send {
    /// JGroups' name without package.
    fn name(&self) -> &'static str;

    /// Its headers' id.
    fn id(&self) -> ProtocolId;

    /// Handles messages towards the network.
    fn down(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// Returns whether `up` handles a batch: a cheap check that lets most batches skip most layers.
    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        true
    }

    /// Returns whether `up` adds neither messages nor headers.
    fn only_takes(&self) -> bool {
        false
    }

    /// Handles messages towards the application.
    fn up(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {}

    /// Handles an event on its way down.
    fn down_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// Handles an event on its way up.
    fn up_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) -> Pass {
        Pass::On
    }

    /// Handles a synchronous call from above, from top to bottom.
    fn control(&mut self, _cx: &mut Cx<'_>, _control: &Control<'_>) {}

    /// Starts the layer, from the bottom up, once before all but `name` and `id`.
    fn start(&mut self, _cx: &mut Cx<'_>) {}

    /// Stops the layer, from the top down. Deliveries are lost; packets still go out.
    fn stop(&mut self, _cx: &mut Cx<'_>) {}

    /// Handles a timer that fired.
    fn timer(&mut self, _cx: &mut Cx<'_>, _key: TimerKey) {}

    /// Handles the outcome of an own effect.
    fn done(&mut self, _cx: &mut Cx<'_>, _token: Token, _outcome: Outcome) {}

    /// Handles a packet from the network (transport only).
    fn receive(&mut self, _cx: &mut Cx<'_>, _from: PhysAddr, _packet: Bytes) {}

    /// Handles the loss of a peer's connection (transport only).
    fn peer_lost(&mut self, _cx: &mut Cx<'_>, _peer: PhysAddr, _is_end_of_stream: bool) {}

    /// Returns whether `flush` is called.
    fn flushes(&self) -> bool {
        false
    }

    /// Sends the collected messages at the end of a sweep.
    fn flush(&mut self, _cx: &mut Cx<'_>) {}

    /// Records that messages of `src` with `credit` bytes were consumed.
    fn consumed(&mut self, _cx: &mut Cx<'_>, _src: &Address, _is_multicast: bool, _credit: u64) {}

    /// Returns the members to which the layers below count the next consumed bytes of `src`, for layers that deliver on behalf of
    /// another member. `None`: `src`.
    fn owed_below(&mut self, _src: &Address, _is_multicast: bool, _credit: u64) -> Option<OwedCredits> {
        None
    }

    /// Returns the bytes of application messages that wait for credits or window room. `None` = multicasts.
    fn queued_bytes(&self, _dest: Option<&Address>) -> u64 {
        0
    }

    /// Returns the member to which messages for `dest` go first, if this layer replaces their destination.
    fn first_hop(&self, _dest: &Address) -> Option<Address> {
        None
    }

    /// Returns how many bytes may wait here before the application has to; `None`: unlimited.
    fn hold_limit(&self, _is_multicast: bool) -> Option<u64> {
        None
    }

    /// Answers a query; reads only.
    fn answer(&self, _query: &Query<'_>) -> Option<Answer> {
        None
    }

    /// Adds attributes for probe.
    fn probe(&self, _out: &mut ProbeOut) {}

    /// Returns the counts for metrics. Reads only; at most linear in the number of members.
    fn counts(&self) -> Vec<(StackCount, u64)> {
        Vec::new()
    }

    /// Returns the properties that the operator may change at run time.
    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        None
    }

    /// Changes an attribute at run time. `None`: no such attribute. The error is for the operator.
    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        self.variable_properties()?.set(name, value)
    }

    /// Returns the operations' names.
    fn operations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs an operation, as probe's `op=`. `None`: no such operation.
    fn operation(&mut self, _cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        None
    }
}

pub(crate) fn report_consumed(protocol: &mut dyn Protocol, cx: &mut Cx<'_>, returning: &mut CreditReturn) {
    returning.pass(|src, is_multicast, credit| {
        protocol.consumed(cx, src, is_multicast, credit);
        protocol.owed_below(src, is_multicast, credit)
    });
}

/// A layer, with facts read for every batch.
pub(crate) struct Slot {
    pub(crate) uid: u16,
    pub(crate) protocol: Box<dyn Protocol>,
    pub(crate) name: &'static str,
    pub(crate) flushes: bool,
    pub(crate) trace: Switch,
}

impl Slot {
    pub(crate) fn new(uid: u16, protocol: Box<dyn Protocol>) -> Self {
        let (name, flushes) = (protocol.name(), protocol.flushes());
        Self { uid, protocol, name, flushes, trace: Switch::default() }
    }

    pub(crate) fn traced(&self) -> Option<LayerTrace> {
        self.trace.is_on().then(|| LayerTrace { layer: self.name, id: self.protocol.id() })
    }
}

/// A layer's access to its stack.
pub struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) index: usize,
    pub(crate) uid: u16,
    pub(crate) name: &'static str,
    pub(crate) shared: &'a mut Shared,
    pub(crate) queues: &'a mut Queues,
    pub(crate) timers: &'a mut Timers,
    pub(crate) below: &'a mut [Slot],
    pub(crate) above: &'a mut [Slot],
}

impl Cx<'_> {
    /// Returns the cycle's time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the random generator.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.shared.rng
    }

    /// Returns the local member.
    pub fn local(&self) -> &Address {
        &self.shared.local
    }

    /// Returns whether `address` is local.
    pub fn is_local(&self, address: &Address) -> bool {
        self.shared.local == *address
    }

    /// Returns the current view.
    pub fn view(&self) -> Option<&View> {
        self.shared.view.as_ref()
    }

    /// Returns whether this member is coordinator.
    pub fn is_coordinator(&self) -> bool {
        self.view().and_then(View::coordinator) == Some(&self.shared.local)
    }

    /// Returns whether this bug is injected.
    #[cfg(feature = "injected-bugs")]
    pub fn has_bug(&self, bug: crate::InjectedBug) -> bool {
        self.shared.injected_bug == Some(bug)
    }

    /// Returns the shared state.
    pub fn shared(&self) -> &Shared {
        self.shared
    }

    /// Returns the shared state, mutable.
    pub fn shared_mut(&mut self) -> &mut Shared {
        self.shared
    }

    /// Returns the address book, mutable.
    pub fn book(&mut self) -> &mut AddressBook {
        &mut self.shared.book
    }

    /// Sends a message through the layers below.
    pub fn send(&mut self, message: Message) {
        debug_assert!(self.index > 0, "the transport transmits, it does not send");
        self.queues.push_down_message(self.index - 1, message);
    }

    /// Delivers a message through the layers above.
    pub fn deliver(&mut self, message: Message) {
        self.queues.push_up_message(self.index + 1, message);
    }

    /// Delivers messages of one source, kind and mode.
    pub fn deliver_batch(&mut self, batch: MessageBatch) {
        self.queues.push_up(self.index + 1, batch);
    }

    /// Messages of another kind or mode, as a window may release them, follow in separate batches.
    pub(crate) fn refill(
        &mut self,
        batch: &mut MessageBatch,
        ready: Vec<Message>,
        is_multicast: bool,
        is_oob: bool,
    ) {
        let belongs =
            |message: &Message| message.is_multicast() == is_multicast && message.is_oob() == is_oob;
        if ready.iter().all(belongs) {
            batch.messages = ready;
            return;
        }
        for message in ready {
            if belongs(&message) {
                batch.messages.push(message);
            } else {
                self.deliver(message);
            }
        }
    }

    /// Sends an event up.
    pub fn raise(&mut self, event: Event) {
        self.queues.push_up_event(self.index + 1, event);
    }

    /// Sends an event down.
    pub fn lower(&mut self, event: Event) {
        if self.index > 0 {
            self.queues.push_down_event(self.index - 1, event);
        }
    }

    /// Makes `view` current in all layers below, then raises it. The caller updates itself.
    pub fn install(&mut self, view: View) {
        self.shared.view = Some(view.clone());
        self.control(&Control::View(&view));
        self.raise(Event::View(view));
    }

    /// Calls all layers below, from top to bottom.
    pub fn control(&mut self, control: &Control<'_>) {
        self.each_below(|protocol, cx| protocol.control(cx, control));
    }

    /// Consumes a message kept by this layer, and returns its credit.
    pub fn absorb(&mut self, message: &Message) {
        if let Some(src) = &message.src {
            self.return_credit(src, message.is_multicast(), u64::from(message.credit));
        }
    }

    /// Returns credit to the sender that the layers below know.
    pub fn return_credit(&mut self, src: &Address, is_multicast: bool, credit: u64) {
        if credit > 0 {
            let mut returning = CreditReturn::new(src, is_multicast, credit);
            self.each_below(|protocol, cx| report_consumed(protocol, cx, &mut returning));
        }
    }

    /// Discards a message: returns its credit and counts the reason.
    pub fn discard(&mut self, message: &Message, why: DropReason) {
        self.absorb(message);
        self.count_drop(why, |book| {
            let src = message.src.as_ref().map_or_else(|| "?".to_owned(), |src| book.member(src).to_string());
            format!("message from {src}, {} bytes, flags {:?}", message.length(), message.flags)
        });
    }

    /// Counts a discarded item; `detail` is the log text.
    pub fn count_drop(&mut self, why: DropReason, detail: impl FnOnce(&AddressBook) -> String) {
        // A retransmission whose acknowledgement was late is normal.
        let severity = if why == DropReason::Duplicate { Severity::Expected } else { Severity::Unexpected };
        self.count_drop_of(why, severity, detail);
    }

    /// Counts a discarded item of this concern.
    pub fn count_drop_of(
        &mut self,
        why: DropReason,
        severity: Severity,
        detail: impl FnOnce(&AddressBook) -> String,
    ) {
        let Shared { drops, book, .. } = &mut *self.shared;
        drops.count(self.now, self.name, why, severity, || detail(book));
    }

    /// Returns the bytes of messages that wait in the layers below for credits or window room.
    pub fn queued_below(&self, dest: Option<&Address>) -> u64 {
        self.below.iter().map(|slot| slot.protocol.queued_bytes(dest)).sum()
    }

    /// Keeps the headers of the layers above, and of protocols of the application.
    pub fn keep_headers_of_above(&self, message: &mut Message) {
        message.headers.0.retain(|header| {
            header.id.0 >= ProtocolId::FIRST_OF_APPLICATIONS
                || self.above.iter().any(|slot| slot.protocol.id() == header.id)
        });
    }

    /// Queries the layers below, then above, nearest first.
    pub fn ask(&self, query: &Query<'_>) -> Option<Answer> {
        let below = self.below.iter().rev().find_map(|slot| slot.protocol.answer(query));
        below.or_else(|| self.above.iter().find_map(|slot| slot.protocol.answer(query)))
    }

    /// Arms or rearms a timer.
    pub fn arm(&mut self, key: TimerKey, after: Duration) {
        self.timers.arm(self.uid, key, self.now + after);
    }

    /// Disarms a timer.
    pub fn disarm(&mut self, key: TimerKey) {
        self.timers.disarm(self.uid, key);
    }

    /// Returns whether a timer is armed.
    pub fn is_armed(&self, key: TimerKey) -> bool {
        self.timers.is_armed(self.uid, key)
    }

    /// Requests an effect from the driver.
    pub fn request(&mut self, effect: Effect) -> Token {
        let token = Token { layer: self.uid, number: self.queues.next_token };
        self.queues.next_token += 1;
        self.queues.effects.push_back((token, effect));
        token
    }

    /// Hands a packet to the network (transport only).
    pub fn transmit(&mut self, transmit: Transmit) {
        self.queues.transmits.push_back(transmit);
    }

    fn each_below(&mut self, mut call: impl FnMut(&mut dyn Protocol, &mut Cx<'_>)) {
        for index in (0..self.below.len()).rev() {
            let (below, rest) = self.below.split_at_mut(index);
            let Some(slot) = rest.first_mut() else { continue };
            let mut cx = Cx {
                now: self.now,
                index,
                uid: slot.uid,
                name: slot.protocol.name(),
                shared: self.shared,
                queues: self.queues,
                timers: self.timers,
                below,
                above: &mut [],
            };
            call(slot.protocol.as_mut(), &mut cx);
        }
    }
}
