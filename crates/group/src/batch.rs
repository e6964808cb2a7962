//! Batches: the unit in which messages travel through the stack. A single message is a batch of one.

use crate::{Address, Cx, Message};

/// Messages on their way up or down.
///
/// Going up, all messages of a batch have the same source, the same kind of destination (multicast or unicast) and
/// the same mode (regular or OOB), and are in the order of reception. Going down they may be mixed; order matters
/// only between messages of equal destination.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct MessageBatch {
    /// The messages.
    pub messages: Vec<Message>,
}

impl MessageBatch {
    /// A batch of one.
    pub fn of(message: Message) -> Self {
        Self { messages: vec![message] }
    }

    /// How many messages are left in it.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The source (of a batch going up).
    pub fn src(&self) -> Option<&Address> {
        self.messages.first().and_then(|message| message.src.as_ref())
    }

    /// Whether it was multicast (a batch going up).
    pub fn is_multicast(&self) -> bool {
        self.messages.first().is_some_and(Message::is_multicast)
    }

    /// Whether it is out of band (a batch going up).
    pub fn is_oob(&self) -> bool {
        self.messages.first().is_some_and(Message::is_oob)
    }

    /// Puts messages of a source back into a batch on its way up, whose messages have been taken out: those that are of
    /// another kind (`is_multicast`, `is_oob`), as when a window releases them together, follow in batches of their own.
    pub(crate) fn refill(&mut self, cx: &mut Cx<'_>, ready: Vec<Message>, is_multicast: bool, is_oob: bool) {
        let belongs =
            |message: &Message| message.is_multicast() == is_multicast && message.is_oob() == is_oob;
        if ready.iter().all(belongs) {
            self.messages = ready;
            return;
        }
        for message in ready {
            if belongs(&message) {
                self.messages.push(message);
            } else {
                cx.deliver(message);
            }
        }
    }

    /// Whether `message` may join this batch on its way up.
    pub fn takes(&self, message: &Message) -> bool {
        self.messages.last().is_some_and(|last| {
            last.is_multicast() == message.is_multicast()
                && last.is_oob() == message.is_oob()
                && last.src == message.src
        })
    }
}
