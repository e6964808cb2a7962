use crate::{Address, Message, ProtocolId};

/// Messages on their way up or down.
///
/// An upward batch has one source, destination kind (multicast or unicast) and mode (regular or OOB), in order of reception. A
/// downward batch may be mixed; order matters only per destination.
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

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns an upward batch's source.
    pub fn src(&self) -> Option<&Address> {
        self.messages.first().and_then(|message| message.src.as_ref())
    }

    /// Returns whether an upward batch was multicast.
    pub fn is_multicast(&self) -> bool {
        self.messages.first().is_some_and(Message::is_multicast)
    }

    /// Returns whether an upward batch is out of band.
    pub fn is_oob(&self) -> bool {
        self.messages.first().is_some_and(Message::is_oob)
    }

    /// Returns whether an upward batch is in total order.
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

/// The protocols whose headers a batch may carry; never misses one.
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

    /// Returns whether a message may have this header.
    #[inline]
    pub const fn has(self, id: ProtocolId) -> bool {
        self.0 & Self::bit(id) != 0
    }

    pub(crate) const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Ids beyond the stock stacks' share the last bit.
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
