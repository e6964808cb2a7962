//! What a protocol may do: [`Cx`]. It holds no socket, no clock and no thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::credit::Returning;
use crate::queues::Queues;
use crate::stack::Slot;
use crate::{
    Address, AddressBook, Answer, Control, Effect, Event, Message, MessageBatch, PhysAddr, Query, Rng, Time,
    TimerKey, Timers, Token, Transmit, Version, View,
};

/// What all layers of a stack share.
#[derive(Debug)]
pub struct Shared {
    /// Our member address.
    pub local: Address,
    /// Our logical name.
    pub name: Arc<str>,
    /// Where we are reached.
    pub phys: PhysAddr,
    /// The cluster, once connecting has begun.
    pub cluster: Option<Arc<str>>,
    /// The current view, once there is one.
    pub view: Option<View>,
    /// Names and physical addresses.
    pub book: AddressBook,
    /// The stack's only source of randomness.
    pub rng: Rng,
    /// The version we send and demand.
    pub version: Version,
    /// Whether the transport reaches everybody with one datagram (UDP with IP multicast).
    pub has_multicast: bool,
    /// What was discarded, and why.
    pub drops: Drops,
    /// The bug this stack has been given.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::Planted>,
}

/// Why something was discarded. Peers can be wrong: bad input is counted, not raised.
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

/// How much a discarded thing means to who runs the member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Concern {
    /// It is a part of normal operation, as around a restart. It is logged for who debugs.
    Expected,
    /// Something is set up wrongly, broken or overloaded. It is a warning.
    Unexpected,
}

/// Counts of what was discarded, per layer and reason; a line in the log at most once a minute for each, and for each concern.
#[derive(Default, Debug)]
pub struct Drops {
    counts: BTreeMap<(&'static str, DropReason), u64>,
    logged: BTreeMap<(&'static str, DropReason, Concern), Time>,
}

impl Drops {
    /// One warning per layer and reason in this time.
    pub const WARN_INTERVAL: Duration = Duration::from_secs(60);

    /// Counts one; `detail` is only made when a line is due.
    pub fn count(
        &mut self,
        now: Time,
        layer: &'static str,
        why: DropReason,
        concern: Concern,
        detail: impl FnOnce() -> String,
    ) {
        let count = self.counts.entry((layer, why)).or_default();
        *count += 1;
        let logged = self.logged.get(&(layer, why, concern));
        if logged.is_some_and(|at| now.since(*at) < Self::WARN_INTERVAL) {
            return;
        }
        self.logged.insert((layer, why, concern), now);
        match concern {
            Concern::Expected => tracing::debug!(layer, %why, count, "discarded: {}", detail()),
            Concern::Unexpected => tracing::warn!(layer, %why, count, "discarded: {}", detail()),
        }
    }

    /// When a line of this concern was logged last, for this layer and reason.
    pub fn logged(&self, layer: &'static str, why: DropReason, concern: Concern) -> Option<Time> {
        self.logged.get(&(layer, why, concern)).copied()
    }

    /// The counts so far.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, DropReason, u64)> {
        self.counts.iter().map(|(&(layer, why), &count)| (layer, why, count))
    }

    /// How many were dropped for this reason, over all layers.
    pub fn total(&self, why: DropReason) -> u64 {
        self.iter().filter(|(_, reason, _)| *reason == why).map(|(_, _, count)| count).sum()
    }
}

/// A layer's access to the stack around it, for the length of one call.
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
    /// The time of this cycle.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The stack's randomness.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.shared.rng
    }

    /// Our member address.
    pub fn local(&self) -> &Address {
        &self.shared.local
    }

    /// Whether it is our own address.
    pub fn is_local(&self, address: &Address) -> bool {
        self.shared.local == *address
    }

    /// The current view.
    pub fn view(&self) -> Option<&View> {
        self.shared.view.as_ref()
    }

    /// Whether this member is first in the current view.
    pub fn is_coordinator(&self) -> bool {
        self.view().and_then(View::coordinator) == Some(&self.shared.local)
    }

    /// Whether this stack has been given the bug.
    #[cfg(feature = "planted")]
    pub fn has_planted(&self, bug: crate::Planted) -> bool {
        self.shared.planted == Some(bug)
    }

    /// What all layers share.
    pub fn shared(&self) -> &Shared {
        self.shared
    }

    /// What all layers share, to change it.
    pub fn shared_mut(&mut self) -> &mut Shared {
        self.shared
    }

    /// Names and physical addresses, to learn more.
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

    /// Makes `view` the current one in all layers below, then sends it up as an event. The caller looks after itself.
    pub fn install(&mut self, view: View) {
        self.shared.view = Some(view.clone());
        self.control(&Control::View(&view));
        self.raise(Event::View(view));
    }

    /// Calls all layers below, from top to bottom.
    pub fn control(&mut self, control: &Control<'_>) {
        self.each_below(|protocol, cx| protocol.control(cx, control));
    }

    /// Ends a message that this layer keeps for itself: the credit it carries goes back to its sender.
    pub fn absorb(&mut self, message: &Message) {
        if let Some(src) = &message.src {
            self.give_back(src, message.is_multicast(), u64::from(message.credit));
        }
    }

    /// Gives credit back to whoever the layers below know as the sender.
    pub fn give_back(&mut self, src: &Address, is_multicast: bool, credit: u64) {
        if credit > 0 {
            let mut returning = Returning::new(src, is_multicast, credit);
            self.each_below(|protocol, cx| returning.pass(protocol, cx));
        }
    }

    /// Discards a message: its credit goes back, the reason is counted.
    pub fn discard(&mut self, message: &Message, why: DropReason) {
        self.absorb(message);
        self.count_drop(why, |book| {
            let src = message.src.as_ref().map_or_else(|| "?".to_owned(), |src| book.member(src).to_string());
            format!("message from {src}, {} bytes, flags {:?}", message.length(), message.flags)
        });
    }

    /// Counts something discarded that is not a message. `detail` is for people, with names from the book.
    pub fn count_drop(&mut self, why: DropReason, detail: impl FnOnce(&AddressBook) -> String) {
        // What was sent again because its acknowledgement was late is expected.
        let concern = if why == DropReason::Duplicate { Concern::Expected } else { Concern::Unexpected };
        self.count_drop_of(why, concern, detail);
    }

    /// The same with what it means.
    pub fn count_drop_of(
        &mut self,
        why: DropReason,
        concern: Concern,
        detail: impl FnOnce(&AddressBook) -> String,
    ) {
        let Shared { drops, book, .. } = &mut *self.shared;
        drops.count(self.now, self.name, why, concern, || detail(book));
    }

    /// Asks the layers below (nearest first), then those above.
    pub fn ask(&self, query: &Query<'_>) -> Option<Answer> {
        let below = self.below.iter().rev().find_map(|slot| slot.protocol.answer(query));
        below.or_else(|| self.above.iter().find_map(|slot| slot.protocol.answer(query)))
    }

    /// Arms a timer of this layer; one armed under the same key is replaced.
    pub fn arm(&mut self, key: TimerKey, after: Duration) {
        self.timers.arm(self.uid, key, self.now + after);
    }

    /// Disarms a timer of this layer.
    pub fn disarm(&mut self, key: TimerKey) {
        self.timers.disarm(self.uid, key);
    }

    /// Whether a timer of this layer is armed.
    pub fn is_armed(&self, key: TimerKey) -> bool {
        self.timers.is_armed(self.uid, key)
    }

    /// Asks the world to do something.
    pub fn request(&mut self, effect: Effect) -> Token {
        let token = Token { layer: self.uid, number: self.queues.next_token };
        self.queues.next_token += 1;
        self.queues.effects.push_back((token, effect));
        token
    }

    /// Hands a packet to the network (the transport only).
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
