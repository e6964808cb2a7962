//! Batches: the unit in which messages travel through the stack. A single message is a batch of one.

use crate::{Address, Cx, Message, ProtocolId};

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

    /// Whether it belongs to the one order of all multicasts (a batch going up).
    pub fn is_totally_ordered(&self) -> bool {
        self.messages.first().is_some_and(Message::is_totally_ordered)
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
                && last.is_totally_ordered() == message.is_totally_ordered()
                && last.src == message.src
        })
    }
}

/// Which protocols' headers a batch carries: never says no wrongly, and yes seldom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderIds(u128);

impl HeaderIds {
    /// The ids of the headers of all messages.
    pub(crate) fn of(batch: &MessageBatch) -> Self {
        let mut ids = 0;
        for message in &batch.messages {
            for header in message.headers.0.as_slice() {
                ids |= Self::bit(header.id);
            }
        }
        Self(ids)
    }

    /// Whether a message of the batch may have a header of this protocol.
    #[inline]
    pub const fn has(self, id: ProtocolId) -> bool {
        self.0 & Self::bit(id) != 0
    }

    /// Whether nothing is in `other` that is not in these.
    pub(crate) const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// A bit for each id of a protocol in the stock stacks; others, which are larger, share the last one.
    #[inline]
    const fn bit(id: ProtocolId) -> u128 {
        if id.0 >= 0 && id.0 < 127 { 1 << id.0 } else { 1 << 127 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderBody;

    #[test]
    fn the_ids_of_a_batch_are_those_of_all_its_messages() {
        let message = |id: i16| Message::empty(None).with_header(ProtocolId(id), HeaderBody::Heartbeat);
        let ids =
            HeaderIds::of(&MessageBatch { messages: vec![message(41), Message::empty(None), message(7)] });
        assert!(ids.has(ProtocolId(41)) && ids.has(ProtocolId(7)));
        assert!([0, 6, 42, 126, 127, 2017, -1].iter().all(|&id| !ids.has(ProtocolId(id))));
        let large = HeaderIds::of(&MessageBatch::of(message(2017)));
        assert!(large.has(ProtocolId(2017)) && !large.has(ProtocolId(41)));
    }
}
