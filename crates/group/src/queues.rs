use std::collections::VecDeque;

use crate::{Effect, Event, Indication, Message, MessageBatch, Token, Transmit};

#[derive(Debug)]
pub(crate) enum Item {
    Batch(MessageBatch),
    Event(Event),
}

/// Emptied vectors are kept for a few sweeps.
const SPARE_MAX: usize = 32;
const SPARE_ROOM_MAX: usize = 4_096;

/// With the total length an idle stack does not look into each inbox.
#[derive(Default, Debug)]
pub(crate) struct Inboxes {
    all: Vec<VecDeque<Item>>,
    count: usize,
}

impl Inboxes {
    fn with_layers(count: usize) -> Self {
        let mut all = Vec::new();
        all.resize_with(count, VecDeque::new);
        Self { all, count: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len_of(&self, layer: usize) -> Option<usize> {
        self.all.get(layer).map(VecDeque::len)
    }

    fn last_mut(&mut self, layer: usize) -> Option<&mut Item> {
        self.all.get_mut(layer)?.back_mut()
    }

    pub(crate) fn pop(&mut self, layer: usize) -> Option<Item> {
        let item = self.all[layer].pop_front()?;
        self.count -= 1;
        Some(item)
    }

    fn push(&mut self, layer: usize, item: Item) {
        self.all[layer].push_back(item);
        self.count += 1;
    }

    pub(crate) fn insert(&mut self, layer: usize, at: usize, item: Item) {
        let inbox = &mut self.all[layer];
        inbox.insert(at.min(inbox.len()), item);
        self.count += 1;
    }

    pub(crate) fn insert_layer(&mut self, layer: usize) {
        self.all.insert(layer, VecDeque::new());
    }

    pub(crate) fn remove_layer(&mut self, layer: usize) {
        self.count -= self.all.remove(layer).len();
    }
}

/// `up[i]` and `down[i]` are the inboxes of layer `i`.
#[derive(Default, Debug)]
pub(crate) struct Queues {
    pub(crate) up: Inboxes,
    pub(crate) down: Inboxes,
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) effects: VecDeque<(Token, Effect)>,
    pub(crate) indications: VecDeque<Indication>,
    pub(crate) next_token: u64,
    /// The inbox and its length before a layer edits a batch. Earlier items belong to the rest of the batch; emitted
    /// messages do not join them.
    pub(crate) sealed_up: Option<(usize, usize)>,
    pub(crate) sealed_down: Option<(usize, usize)>,
    spare: Vec<Vec<Message>>,
}

impl Queues {
    pub(crate) fn with_layers(count: usize) -> Self {
        Self { up: Inboxes::with_layers(count), down: Inboxes::with_layers(count), ..Self::default() }
    }

    fn batch_of(&mut self, message: Message) -> MessageBatch {
        let mut messages = self.spare.pop().unwrap_or_default();
        messages.push(message);
        MessageBatch { messages }
    }

    pub(crate) fn recycle(&mut self, batch: MessageBatch) {
        let room = batch.messages.capacity();
        if batch.is_empty() && room > 0 && room <= SPARE_ROOM_MAX && self.spare.len() < SPARE_MAX {
            self.spare.push(batch.messages);
        }
    }

    pub(crate) fn push_up(&mut self, to: usize, batch: MessageBatch) {
        if batch.is_empty() {
            return;
        }
        match self.up.len_of(to) {
            Some(_) => self.up.push(to, Item::Batch(batch)),
            None => self.indications.push_back(Indication::Batch(batch)),
        }
    }

    pub(crate) fn push_up_message(&mut self, to: usize, message: Message) {
        let inbox = self.up.len_of(to);
        let len = inbox.unwrap_or(self.indications.len());
        let tail = match inbox {
            _ if self.sealed_up == Some((to, len)) => None,
            Some(_) => match self.up.last_mut(to) {
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

    pub(crate) fn push_up_event(&mut self, to: usize, event: Event) {
        match self.up.len_of(to) {
            Some(_) => self.up.push(to, Item::Event(event)),
            None => self.indications.push_back(Indication::Event(event)),
        }
    }

    pub(crate) fn push_down_message(&mut self, to: usize, message: Message) {
        let is_sealed =
            self.sealed_down.is_some_and(|(sealed, at)| sealed == to && self.down.len_of(to) == Some(at));
        match self.down.last_mut(to) {
            Some(Item::Batch(batch)) if !is_sealed => batch.messages.push(message),
            _ => {
                let batch = self.batch_of(message);
                self.down.push(to, Item::Batch(batch));
            }
        }
    }

    pub(crate) fn push_down_event(&mut self, to: usize, event: Event) {
        self.down.push(to, Item::Event(event));
    }
}
