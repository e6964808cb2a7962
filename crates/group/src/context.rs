//! A protocol's interface to the stack, [`Cx`]. It holds no socket, clock or thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::credit::CreditReturn;
use crate::queues::Queues;
use crate::stack::Slot;
use crate::{
    Address, AddressBook, Answer, Control, Effect, Event, Message, MessageBatch, PhysAddr, Query, Rng, Time,
    TimerKey, Timers, Token, Transmit, Version, View,
};

/// The state that all layers of a stack share.
#[derive(Debug)]
pub struct Shared {
    /// The local member's address.
    pub local: Address,
    /// The local member's logical name.
    pub name: Arc<str>,
    /// The local member's physical address.
    pub phys: PhysAddr,
    /// The cluster, once connecting has begun.
    pub cluster: Option<Arc<str>>,
    /// The current view, once there is one.
    pub view: Option<View>,
    /// Names and physical addresses.
    pub book: AddressBook,
    /// The stack's only random generator.
    pub rng: Rng,
    /// The version to send and to require.
    pub version: Version,
    /// Whether the transport reaches all members with one datagram (UDP with IP multicast).
    pub has_multicast: bool,
    /// The system's monotonic clock at [`Time::ZERO`], in nanoseconds. Members of one host share it.
    pub clock_origin: u64,
    /// Counts of discarded input.
    pub drops: Drops,
    /// The bug injected into this stack.
    #[cfg(feature = "injected-bugs")]
    pub injected_bug: Option<crate::InjectedBug>,
}

/// The reason why input was discarded. A peer's wrong input is counted and raises no error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum DropReason {
    Malformed,
    WrongVersion,
    WrongCluster,
    WrongDestination,
    OwnPacket,
    NotMember,
    NotServer,
    Duplicate,
    BeyondWindow,
    MissingHeader,
    UnknownAddress,
    QueueFull,
    NoCredits,
    Injected,
    Unexpected,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (at, letter) in format!("{self:?}").chars().enumerate() {
            if letter.is_uppercase() && at > 0 {
                text.push('_');
            }
            text.extend(letter.to_lowercase());
        }
        f.write_str(&text)
    }
}

/// The severity of a discarded item for the operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// A part of normal operation, for example around a restart. Logged at debug level.
    Expected,
    /// A sign of wrong configuration, a defect or overload. Logged as a warning.
    Unexpected,
}

/// Counts of discarded items per layer and reason. Each layer, reason and concern logs at most one line a
/// minute.
#[derive(Default, Debug)]
pub struct Drops {
    counts: BTreeMap<(&'static str, DropReason), u64>,
    logged: BTreeMap<(&'static str, DropReason, Severity), Time>,
}

impl Drops {
    /// The shortest time between two log lines of one layer, reason and concern.
    pub const WARN_INTERVAL: Duration = Duration::from_secs(60);

    /// Counts one item. Calls `detail` only when a log line is due.
    pub fn count(
        &mut self,
        now: Time,
        layer: &'static str,
        why: DropReason,
        severity: Severity,
        detail: impl FnOnce() -> String,
    ) {
        let count = self.counts.entry((layer, why)).or_default();
        *count += 1;
        let logged = self.logged.get(&(layer, why, severity));
        if logged.is_some_and(|at| now.since(*at) < Self::WARN_INTERVAL) {
            return;
        }
        self.logged.insert((layer, why, severity), now);
        match severity {
            Severity::Expected => tracing::debug!(layer, %why, count, "discarded: {}", detail()),
            Severity::Unexpected => tracing::warn!(layer, %why, count, "discarded: {}", detail()),
        }
    }

    /// Returns when a line of this concern was logged last for this layer and reason.
    pub fn logged(&self, layer: &'static str, why: DropReason, severity: Severity) -> Option<Time> {
        self.logged.get(&(layer, why, severity)).copied()
    }

    /// Returns the counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, DropReason, u64)> {
        self.counts.iter().map(|(&(layer, why), &count)| (layer, why, count))
    }

    /// Returns the count of a reason, summed over all layers.
    pub fn total(&self, why: DropReason) -> u64 {
        self.iter().filter(|(_, reason, _)| *reason == why).map(|(_, _, count)| count).sum()
    }
}

/// A layer's access to its stack during one call.
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
    /// Returns the time of this cycle.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the stack's random generator.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.shared.rng
    }

    /// Returns the local member's address.
    pub fn local(&self) -> &Address {
        &self.shared.local
    }

    /// Returns whether `address` is the local member's.
    pub fn is_local(&self, address: &Address) -> bool {
        self.shared.local == *address
    }

    /// Returns the current view.
    pub fn view(&self) -> Option<&View> {
        self.shared.view.as_ref()
    }

    /// Returns whether this member is first in the current view.
    pub fn is_coordinator(&self) -> bool {
        self.view().and_then(View::coordinator) == Some(&self.shared.local)
    }

    /// Returns whether this bug is injected into the stack.
    #[cfg(feature = "injected-bugs")]
    pub fn has_bug(&self, bug: crate::InjectedBug) -> bool {
        self.shared.injected_bug == Some(bug)
    }

    /// Returns the state that all layers share.
    pub fn shared(&self) -> &Shared {
        self.shared
    }

    /// Returns the state that all layers share, mutable.
    pub fn shared_mut(&mut self) -> &mut Shared {
        self.shared
    }

    /// Returns the address book, mutable.
    pub fn book(&mut self) -> &mut AddressBook {
        &mut self.shared.book
    }

    /// Sends a message towards the network, through the layers below this one.
    pub fn send(&mut self, message: Message) {
        debug_assert!(self.index > 0, "the transport transmits, it does not send");
        self.queues.push_down_message(self.index - 1, message);
    }

    /// Delivers a message towards the application, through the layers above this one.
    pub fn deliver(&mut self, message: Message) {
        self.queues.push_up_message(self.index + 1, message);
    }

    /// Delivers messages of one source, kind and mode.
    pub fn deliver_batch(&mut self, batch: MessageBatch) {
        self.queues.push_up(self.index + 1, batch);
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

    /// Makes `view` current in all layers below, then raises it as an event. The caller updates itself.
    pub fn install(&mut self, view: View) {
        self.shared.view = Some(view.clone());
        self.control(&Control::View(&view));
        self.raise(Event::View(view));
    }

    /// Calls all layers below, from top to bottom.
    pub fn control(&mut self, control: &Control<'_>) {
        self.each_below(|protocol, cx| protocol.control(cx, control));
    }

    /// Consumes a message that this layer keeps for itself: its credit returns to its sender.
    pub fn absorb(&mut self, message: &Message) {
        if let Some(src) = &message.src {
            self.return_credit(src, message.is_multicast(), u64::from(message.credit));
        }
    }

    /// Returns credit to the member that the layers below know as the sender.
    pub fn return_credit(&mut self, src: &Address, is_multicast: bool, credit: u64) {
        if credit > 0 {
            let mut returning = CreditReturn::new(src, is_multicast, credit);
            self.each_below(|protocol, cx| returning.pass(protocol, cx));
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

    /// Counts a discarded item that is not a message. `detail` is the log text, with names from the book.
    pub fn count_drop(&mut self, why: DropReason, detail: impl FnOnce(&AddressBook) -> String) {
        // A retransmission whose acknowledgement was late is normal.
        let severity = if why == DropReason::Duplicate { Severity::Expected } else { Severity::Unexpected };
        self.count_drop_of(why, severity, detail);
    }

    /// Counts a discarded item of this concern that is not a message. `detail` is the log text.
    pub fn count_drop_of(
        &mut self,
        why: DropReason,
        severity: Severity,
        detail: impl FnOnce(&AddressBook) -> String,
    ) {
        let Shared { drops, book, .. } = &mut *self.shared;
        drops.count(self.now, self.name, why, severity, || detail(book));
    }

    /// Queries the layers below (nearest first), then the layers above.
    pub fn ask(&self, query: &Query<'_>) -> Option<Answer> {
        let below = self.below.iter().rev().find_map(|slot| slot.protocol.answer(query));
        below.or_else(|| self.above.iter().find_map(|slot| slot.protocol.answer(query)))
    }

    /// Arms a timer of this layer. Replaces a timer armed under the same key.
    pub fn arm(&mut self, key: TimerKey, after: Duration) {
        self.timers.arm(self.uid, key, self.now + after);
    }

    /// Disarms a timer of this layer.
    pub fn disarm(&mut self, key: TimerKey) {
        self.timers.disarm(self.uid, key);
    }

    /// Returns whether a timer of this layer is armed.
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

    /// Hands a packet to the network. Only the transport may call this.
    pub fn transmit(&mut self, transmit: Transmit) {
        self.queues.transmits.push_back(transmit);
    }

    fn each_below(&mut self, mut call: impl FnMut(&mut dyn crate::Protocol, &mut Cx<'_>)) {
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
