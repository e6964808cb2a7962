//! DUPL: repeats messages.

use super::NO_HEADER;
use crate::config::Properties;
use crate::{Cx, Message, MessageBatch, ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// DUPL's properties.
    DuplicateConfig {
        /// How many more times an incoming message is delivered.
        incoming_copies: u32 = 1,
        /// How many more times an outgoing message is sent.
        outgoing_copies: u32 = 1,
        /// Whether unicasts are repeated.
        copy_unicast_msgs: bool = true,
        /// Whether multicasts are repeated.
        copy_multicast_msgs: bool = true,
    }
}

/// The DUPL layer.
pub struct Duplicate {
    config: DuplicateConfig,
}

impl Duplicate {
    /// Creates the layer.
    pub const fn new(config: DuplicateConfig) -> Self {
        Self { config }
    }

    /// The copy has no credit and ticket, so that neither is returned twice.
    fn copy(message: &Message) -> Message {
        Message { credit: 0, ticket: 0, ..message.clone() }
    }

    fn copies(&self, message: &Message, copies: u32) -> u32 {
        let is_wanted = if message.is_multicast() {
            self.config.copy_multicast_msgs
        } else {
            self.config.copy_unicast_msgs
        };
        if is_wanted { copies } else { 0 }
    }
}

impl Protocol for Duplicate {
    fn name(&self) -> &'static str {
        "DUPL"
    }

    fn id(&self) -> ProtocolId {
        NO_HEADER
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in &batch.messages {
            for _ in 0..self.copies(message, self.config.incoming_copies) {
                cx.deliver(Self::copy(message));
            }
        }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in &batch.messages {
            for _ in 0..self.copies(message, self.config.outgoing_copies) {
                cx.send(Self::copy(message));
            }
        }
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};

    #[test]
    fn every_message_goes_twice_both_ways() {
        let mut harness = Harness::new(Duplicate::new(DuplicateConfig::default()));
        harness.up(Message::bytes(Some(member(1)), "x").sent_by(2)).send(Message::bytes(None, "x"));
        assert_eq!(harness.take_up().len(), 2);
        assert_eq!(harness.take_down().len(), 2);
    }

    #[test]
    fn a_copy_has_neither_credit_nor_ticket() {
        let mut harness = Harness::new(Duplicate::new(DuplicateConfig::default()));
        let mut message = Message::bytes(Some(member(1)), "x").sent_by(2);
        message.credit = 5;
        harness.up(message.clone());
        assert_eq!(harness.take_up().iter().map(|message| message.credit).collect::<Vec<_>>(), [5, 0]);
        message.ticket = 7;
        harness.send(message);
        assert_eq!(harness.take_down().iter().map(|message| message.ticket).collect::<Vec<_>>(), [7, 0]);
    }
}
