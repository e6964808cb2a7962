//! Batches: the unit in which messages travel through the stack. A single message is a batch of one.

use crate::{Address, Message, ProtocolId};

/// Messages on their way up or down.
///
/// All messages of an upward batch have the same source, destination kind (multicast or unicast) and mode
/// (regular or OOB), in the order of reception. A downward batch may be mixed; order matters only between
/// messages to the same destination.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct MessageBatch {
    /// The messages.
    pub messages: Vec<Message>,
}

impl MessageBatch {
    /// Creates a batch of one.
    pub fn single(message: Message) -> Self {
        Self { messages: vec![message] }
    }

    /// Returns how many messages are left.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether no message is left.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the source (of an upward batch).
    pub fn src(&self) -> Option<&Address> {
        self.messages.first().and_then(|message| message.src.as_ref())
    }

    /// Returns whether the messages were multicast (of an upward batch).
    pub fn is_multicast(&self) -> bool {
        self.messages.first().is_some_and(Message::is_multicast)
    }

    /// Returns whether the messages are out of band (of an upward batch).
    pub fn is_oob(&self) -> bool {
        self.messages.first().is_some_and(Message::is_oob)
    }

    /// Returns whether the messages are in total order (of an upward batch).
    pub fn is_totally_ordered(&self) -> bool {
        self.messages.first().is_some_and(Message::is_totally_ordered)
    }

    /// Returns whether `message` may join this upward batch.
    pub fn takes(&self, message: &Message) -> bool {
        self.messages.last().is_some_and(|last| {
            last.is_multicast() == message.is_multicast()
                && last.is_oob() == message.is_oob()
                && last.is_totally_ordered() == message.is_totally_ordered()
                && last.src == message.src
        })
    }
}

/// The set of protocols whose headers a batch carries. It may contain protocols without a header, but never
/// misses one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderIds(u128);

impl HeaderIds {
    pub(crate) fn from_batch(batch: &MessageBatch) -> Self {
        let mut ids = 0;
        for message in &batch.messages {
            for header in message.headers.0.as_slice() {
                ids |= Self::bit(header.id);
            }
        }
        Self(ids)
    }

    /// Returns whether a message of the batch may have a header of this protocol.
    #[inline]
    pub const fn has(self, id: ProtocolId) -> bool {
        self.0 & Self::bit(id) != 0
    }

    pub(crate) const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// A bit per protocol id of the stock stacks. Larger ids share the last bit.
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
        let ids = HeaderIds::from_batch(&MessageBatch {
            messages: vec![message(41), Message::empty(None), message(7)],
        });
        assert!(ids.has(ProtocolId(41)) && ids.has(ProtocolId(7)));
        assert!([0, 6, 42, 126, 127, 2017, -1].iter().all(|&id| !ids.has(ProtocolId(id))));
        let large = HeaderIds::from_batch(&MessageBatch::single(message(2017)));
        assert!(large.has(ProtocolId(2017)) && !large.has(ProtocolId(41)));
    }
}
