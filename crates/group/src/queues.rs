//! The inboxes between layers and the outputs at both ends.

use std::collections::VecDeque;

use crate::{Effect, Event, Indication, Message, MessageBatch, Token, Transmit};

#[derive(Debug)]
pub(crate) enum Item {
    Batch(MessageBatch),
    Event(Event),
}

/// Emptied vectors that are kept for the next batches, and the messages that each may have room for: a few sweeps'
/// worth, so that neither the allocator nor growing a vector costs anything in the long run.
const SPARE_MAX: usize = 32;
const SPARE_ROOM_MAX: usize = 4_096;

/// `up[i]` and `down[i]` are the inboxes of layer `i`; what layer `i` passes up goes to `up[i + 1]`.
#[derive(Default, Debug)]
pub(crate) struct Queues {
    pub(crate) up: Vec<VecDeque<Item>>,
    pub(crate) down: Vec<VecDeque<Item>>,
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) effects: VecDeque<(Token, Effect)>,
    pub(crate) indications: VecDeque<Indication>,
    pub(crate) next_token: u64,
    /// While a layer edits a batch: messages it emits do not join items before this place, which belongs to what is
    /// left of the batch. (inbox, length at the start of the call)
    pub(crate) sealed_up: Option<(usize, usize)>,
    pub(crate) sealed_down: Option<(usize, usize)>,
    spare: Vec<Vec<Message>>,
}

impl Queues {
    pub(crate) fn with_layers(count: usize) -> Self {
        let mut queues = Self::default();
        queues.up.resize_with(count, VecDeque::new);
        queues.down.resize_with(count, VecDeque::new);
        queues
    }

    /// A batch of one, in a vector that has been used before if there is one.
    fn batch_of(&mut self, message: Message) -> MessageBatch {
        let mut messages = self.spare.pop().unwrap_or_default();
        messages.push(message);
        MessageBatch { messages }
    }

    /// Keeps an emptied batch's memory for later ones.
    pub(crate) fn recycle(&mut self, batch: MessageBatch) {
        let room = batch.messages.capacity();
        if batch.is_empty() && room > 0 && room <= SPARE_ROOM_MAX && self.spare.len() < SPARE_MAX {
            self.spare.push(batch.messages);
        }
    }

    /// Queues a batch upwards into layer `to`, or out of the top.
    pub(crate) fn push_up(&mut self, to: usize, batch: MessageBatch) {
        if batch.is_empty() {
            return;
        }
        match self.up.get_mut(to) {
            Some(inbox) => inbox.push_back(Item::Batch(batch)),
            None => self.indications.push_back(Indication::Batch(batch)),
        }
    }

    /// Queues one message upwards, joining the batch before it where source, kind and mode agree.
    pub(crate) fn push_up_message(&mut self, to: usize, message: Message) {
        let len = self.up.get(to).map_or(self.indications.len(), VecDeque::len);
        let tail = match self.up.get_mut(to) {
            _ if self.sealed_up == Some((to, len)) => None,
            Some(inbox) => match inbox.back_mut() {
                Some(Item::Batch(batch)) => Some(batch),
                _ => None,
            },
            None => match self.indications.back_mut() {
                Some(Indication::Batch(batch)) => Some(batch),
                _ => None,
            },
        };
        match tail {
            Some(batch) if batch.takes(&message) => batch.messages.push(message),
            _ => {
                let batch = self.batch_of(message);
                self.push_up(to, batch);
            }
        }
    }

    /// Queues an event upwards into layer `to`, or out of the top.
    pub(crate) fn push_up_event(&mut self, to: usize, event: Event) {
        match self.up.get_mut(to) {
            Some(inbox) => inbox.push_back(Item::Event(event)),
            None => self.indications.push_back(Indication::Event(event)),
        }
    }

    /// Queues one message downwards, joining the batch before it.
    pub(crate) fn push_down_message(&mut self, to: usize, message: Message) {
        let is_sealed = self.sealed_down == Some((to, self.down[to].len()));
        match self.down[to].back_mut() {
            Some(Item::Batch(batch)) if !is_sealed => batch.messages.push(message),
            _ => {
                let batch = self.batch_of(message);
                self.down[to].push_back(Item::Batch(batch));
            }
        }
    }

    pub(crate) fn push_down_event(&mut self, to: usize, event: Event) {
        self.down[to].push_back(Item::Event(event));
    }
}
