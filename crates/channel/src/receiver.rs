//! The application's interface for messages, views and state.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::{Address, Message, MessageBatch, View};
use consort_net::{Command, Submitter};

use crate::catch_panic::catch_panic;
use crate::up_handler::take_if;

/// The application's side of a channel. All methods have defaults. None may block for long, because they run on the
/// runtime's threads: a receiver that has to wait keeps the [`Delivery`] and drops it when it is done, which slows
/// the senders down.
///
/// A panic ends that call alone. The panic hook reports it, and it is logged as an error. The message is not
/// delivered again, the senders get their credits back, and delivery continues. A caller that waits for a state gets
/// an error ([`crate::StateError`]).
pub trait Receiver: Send + Sync + 'static {
    /// A message has arrived.
    fn receive(&self, message: Message) {
        let _ = message;
    }

    /// All deliverable messages of one sender have arrived (S000-56). The default passes them to
    /// [`Receiver::receive`] one by one, and continues after a panic. Senders get their credits back when the
    /// delivery is dropped.
    fn receive_batch(&self, mut delivery: Delivery) {
        let src = delivery.src().cloned();
        let mut messages = delivery.take().into_iter();
        while !messages.as_slice().is_empty() {
            let rest = messages.by_ref();
            let _ = catch_panic("receive", src.as_ref(), || rest.for_each(|message| self.receive(message)));
        }
    }

    /// A new view is installed.
    fn view_accepted(&self, view: &View) {
        let _ = view;
    }

    /// A member seems to have crashed; a view without it follows if it has.
    fn suspected(&self, member: &Address) {
        let _ = member;
    }

    /// Returns the application's state for a member that requests it. That member receives the error's text.
    fn state(&self) -> Result<Option<Bytes>, String> {
        Ok(None)
    }

    /// Sets a state that was requested with [`crate::Channel::fetch_state`], which fails if this panics.
    fn set_state(&self, state: Option<Bytes>) {
        let _ = state;
    }
}

/// A receiver that ignores everything.
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

/// Messages of one sender. Their credits are returned when it is dropped.
#[derive(Debug)]
pub struct Delivery {
    batch: MessageBatch,
    credit: Option<Credit>,
}

#[derive(Debug)]
struct Credit {
    src: Address,
    is_multicast: bool,
    bytes: u64,
    driver: Submitter,
}

impl Delivery {
    pub(crate) fn new(batch: MessageBatch, driver: &Submitter) -> Self {
        let bytes: u64 = batch.messages.iter().map(|message| u64::from(message.credit)).sum();
        let credit = batch.src().filter(|_| bytes > 0).map(|src| Credit {
            src: src.clone(),
            is_multicast: batch.is_multicast(),
            bytes,
            driver: driver.clone(),
        });
        Self { batch, credit }
    }

    /// Returns the sender.
    pub fn src(&self) -> Option<&Address> {
        self.batch.src()
    }

    /// Returns the messages, in order.
    pub fn messages(&self) -> &[Message] {
        &self.batch.messages
    }

    /// Takes the messages out; the credits stay until the delivery is dropped.
    pub fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.batch.messages)
    }

    /// Takes the messages for which `wanted` returns true.
    pub(crate) fn take_if(&mut self, wanted: impl FnMut(&Message) -> bool) -> Vec<Message> {
        take_if(&mut self.batch, wanted).messages
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(Credit { src, is_multicast, bytes, driver }) = self.credit.take()
            && bytes > 0
        {
            let _ = driver.submit(Command::Consumed { src, is_multicast, credit: bytes });
        }
    }
}
