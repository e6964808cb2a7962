//! DISCARD_PAYLOAD: drops and repeats messages by the number in their payload.

use crate::wire;
use crate::{
    Cx, DropReason, Flags, Message, MessageBatch, Object, Payload, Primitive, ProbeOut, Protocol, ProtocolId,
};

crate::properties! {
    /// DISCARD_PAYLOAD's properties.
    DiscardPayloadConfig {
        /// A message with this number as payload is dropped, three times in all.
        seqno: i64 = 3,
        /// A message with this number as payload is sent twice.
        duplicate: i64 = 4,
    }
}

/// How often the number `seqno` is dropped, as in JGroups.
const DISCARDS: u32 = 3;

/// The DISCARD_PAYLOAD layer.
pub struct DiscardPayload {
    config: DiscardPayloadConfig,
    discards: u32,
}

impl DiscardPayload {
    /// Creates the layer.
    pub const fn new(config: DiscardPayloadConfig) -> Self {
        Self { config, discards: 0 }
    }
}

fn number(message: &Message) -> Option<i64> {
    match &message.payload {
        Payload::Long(number) => Some(*number),
        Payload::Object(object) => match &**object {
            Object::Primitive(Primitive::Long(number)) => Some(*number),
            _ => None,
        },
        Payload::Bytes(Some(bytes)) if message.flags.has(Flags::SERIALIZED) => {
            match wire::decode_primitive(bytes) {
                Ok(Primitive::Long(number)) => Some(number),
                _ => None,
            }
        }
        _ => None,
    }
}

impl Protocol for DiscardPayload {
    fn name(&self) -> &'static str {
        "DISCARD_PAYLOAD"
    }

    fn id(&self) -> ProtocolId {
        super::NO_HEADER
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        if !batch.messages.iter().any(|message| number(message).is_some()) {
            return;
        }
        for message in std::mem::take(&mut batch.messages) {
            let number = number(&message);
            if number == Some(self.config.seqno) && self.discards < DISCARDS {
                self.discards += 1;
                cx.discard(&message, DropReason::Injected);
                continue;
            }
            if number == Some(self.config.duplicate) {
                batch.messages.push(message.clone());
            }
            batch.messages.push(message);
        }
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn variable_properties(&mut self) -> Option<&mut dyn crate::config::Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_discards", self.discards);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    fn numbers(messages: &[Message]) -> Vec<Option<i64>> {
        messages.iter().map(number).collect()
    }

    #[test]
    fn one_number_is_dropped_three_times_and_another_is_sent_twice() {
        let mut harness = Harness::new(DiscardPayload::new(DiscardPayloadConfig::default()));
        let long = |n| Message::object(None, Object::Primitive(Primitive::Long(n)));
        harness.send_batch((1..=5).map(long).collect());
        assert_eq!(numbers(&harness.take_down()), [Some(1), Some(2), Some(4), Some(4), Some(5)]);
        harness.send_batch(vec![long(3); 4]);
        assert_eq!(numbers(&harness.take_down()), [Some(3), Some(3)], "two more are dropped");
    }

    #[test]
    fn a_number_is_found_in_each_form_of_a_java_long() {
        let wanted = Some(-7);
        assert_eq!(number(&Message::new(None, Payload::Long(-7))), wanted);
        let bytes = wire::encode_primitive(&Primitive::Long(-7));
        let message = Message::bytes(None, bytes.clone());
        assert_eq!(number(&message), None, "bytes of an application");
        assert_eq!(number(&message.with_flags(Flags::SERIALIZED)), wanted);
        assert_eq!(number(&Message::object(None, Object::Primitive(Primitive::Int(3)))), None);
        assert_eq!(number(&Message::empty(None)), None);
    }
}
