use std::sync::Arc;

use bytes::Bytes;
use consort_group::{Address, HeldCredit, Message, MessageBatch, View};
use consort_net::{Command, Submitter};

use crate::catch_panic::catch_panic;
use crate::up_handler::take_if;

/// The application's side of a channel. No method may block the runtime's threads: a slow receiver keeps the [`Delivery`] until
/// it is done, which slows senders down.
///
/// A panic ends that call alone and is logged; the message is not delivered again, credits return, and delivery continues. A
/// caller waiting for a state gets an error ([`crate::StateError`]).
pub trait Receiver: Send + Sync + 'static {
    /// Receives a message.
    fn receive(&self, message: Message) {
        let _ = message;
    }

    /// Receives all deliverable messages of a sender (S000-56); by default [`Receiver::receive`] gets each, even after a panic. A
    /// drop returns the credits.
    fn receive_batch(&self, mut delivery: Delivery) {
        let src = delivery.src().cloned();
        let mut messages = delivery.take().into_iter();
        while !messages.as_slice().is_empty() {
            let rest = messages.by_ref();
            let _ = catch_panic("receive", src.as_ref(), || rest.for_each(|message| self.receive(message)));
        }
    }

    /// Receives a new view.
    fn view_accepted(&self, view: &View) {
        let _ = view;
    }

    /// A member may have crashed; then a view follows.
    fn suspected(&self, member: &Address) {
        let _ = member;
    }

    /// Returns the state for another member, or an error text.
    fn state(&self) -> Result<Option<Bytes>, String> {
        Ok(None)
    }

    /// Sets the state of [`crate::Channel::fetch_state`], which fails on a panic.
    fn set_state(&self, state: Option<Bytes>) {
        let _ = state;
    }
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoringReceiver;

impl Receiver for IgnoringReceiver {}

impl<R: Receiver + ?Sized> Receiver for Arc<R> {
    fn receive(&self, message: Message) {
        (**self).receive(message);
    }
    fn receive_batch(&self, delivery: Delivery) {
        (**self).receive_batch(delivery);
    }
    fn view_accepted(&self, view: &View) {
        (**self).view_accepted(view);
    }
    fn suspected(&self, member: &Address) {
        (**self).suspected(member);
    }
    fn state(&self) -> Result<Option<Bytes>, String> {
        (**self).state()
    }
    fn set_state(&self, state: Option<Bytes>) {
        (**self).set_state(state);
    }
}

/// A sender's messages; a drop returns their credits.
#[derive(Debug)]
pub struct Delivery {
    batch: MessageBatch,
    _credit: Option<Credit>,
}

/// Credit that a drop returns to its sender.
#[derive(Debug)]
pub(crate) struct Credit {
    held: HeldCredit,
    driver: Submitter,
}

impl Credit {
    pub(crate) const fn held(held: HeldCredit, driver: Submitter) -> Self {
        Self { held, driver }
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        let HeldCredit { src, is_multicast, bytes } = self.held.clone();
        let _ = self.driver.submit(Command::Consumed { src, is_multicast, credit: bytes });
    }
}

impl Delivery {
    pub(crate) fn new(batch: MessageBatch, driver: &Submitter) -> Self {
        let bytes: u64 = batch.messages.iter().map(|message| u64::from(message.credit)).sum();
        let credit = batch.src().filter(|_| bytes > 0).map(|src| {
            let held = HeldCredit { src: src.clone(), is_multicast: batch.is_multicast(), bytes };
            Credit::held(held, driver.clone())
        });
        Self { batch, _credit: credit }
    }

    /// Returns the sender.
    pub fn src(&self) -> Option<&Address> {
        self.batch.src()
    }

    /// Returns the messages.
    pub fn messages(&self) -> &[Message] {
        &self.batch.messages
    }

    /// Takes the messages; credits stay until the drop.
    pub fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.batch.messages)
    }

    pub(crate) fn take_if(&mut self, wanted: impl FnMut(&Message) -> bool) -> Vec<Message> {
        take_if(&mut self.batch, wanted).messages
    }
}
