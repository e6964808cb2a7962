//! What an application implements to hear of messages, views and state.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::{Address, Message, MessageBatch, View};
use consort_net::{Command, Submitter};

use crate::guarded::guarded;
use crate::up_handler::take_if;

/// The application's side of a channel. All methods have defaults; none may block for long, because they run on the
/// runtime's threads: a receiver that has to wait keeps the [`Delivery`] and drops it when it is done, which is what
/// slows the senders down.
///
/// A panic ends the call in which it happens and nothing else. It is reported by the panic hook and logged as an error;
/// the message is not delivered again, the senders get their credits back, and what comes later is delivered. Who waits
/// for a state is told ([`crate::StateError`]).
pub trait Receiver: Send + Sync + 'static {
    /// One message.
    fn receive(&self, message: Message) {
        let _ = message;
    }

    /// All messages of one sender that are ready: the whole batch in one call (S000-56). The default hands them to
    /// [`Receiver::receive`] one by one; where that panics, the others follow all the same. Senders get their credits
    /// back when the delivery is dropped.
    fn receive_batch(&self, mut delivery: Delivery) {
        let src = delivery.src().cloned();
        let mut messages = delivery.take().into_iter();
        while !messages.as_slice().is_empty() {
            let rest = messages.by_ref();
            let _ = guarded("receive", src.as_ref(), || rest.for_each(|message| self.receive(message)));
        }
    }

    /// A new view.
    fn view_accepted(&self, view: &View) {
        let _ = view;
    }

    /// A member seems to have crashed; a view without it follows if it has.
    fn suspected(&self, member: &Address) {
        let _ = member;
    }

    /// Gives the application's state to a member that asks for it. The error's text reaches that member.
    fn state(&self) -> Result<Option<Bytes>, String> {
        Ok(None)
    }

    /// Takes a state that was asked for with [`crate::Channel::fetch_state`], which fails if this panics.
    fn set_state(&self, state: Option<Bytes>) {
        let _ = state;
    }
}

/// A receiver that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Receiver for Silent {}

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

/// Messages of one sender. While it lives, the senders' credits for them are not returned.
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

    /// Who sent them.
    pub fn src(&self) -> Option<&Address> {
        self.batch.src()
    }

    /// The messages, in order.
    pub fn messages(&self) -> &[Message] {
        &self.batch.messages
    }

    /// Takes the messages out; the credits stay until the delivery is dropped.
    pub fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.batch.messages)
    }

    /// Takes the messages for which `wanted` says so.
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
