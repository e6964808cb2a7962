//! NON_BLOCKING_SENDS: keeps sends during a receiver's callback from blocking. It has no effect: no layer blocks, and
//! the callback's sends return at once.
//!
//! JGroups drops such messages without credits; here they wait in flow control.

use crate::{Protocol, ProtocolId};

crate::properties! {
    /// NON_BLOCKING_SENDS has no properties with an effect.
    NonBlockingSendsConfig {}
}

/// The NON_BLOCKING_SENDS layer.
pub struct NonBlockingSends;

impl NonBlockingSends {
    /// Creates the layer.
    pub const fn new(_config: NonBlockingSendsConfig) -> Self {
        Self
    }
}

impl Protocol for NonBlockingSends {
    fn name(&self) -> &'static str {
        "NON_BLOCKING_SENDS"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn only_takes(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member};

    #[test]
    fn messages_pass_unchanged_both_ways() {
        let mut harness = Harness::new(NonBlockingSends::new(NonBlockingSendsConfig {}));
        let mut message = Message::bytes(Some(member(1)), "x");
        message.src = Some(member(2));
        assert_eq!(harness.up(message.clone()).take_up(), [message]);
        let mut sent = Message::bytes(None, "y");
        sent.src = Some(member(1));
        assert_eq!(harness.send(sent.clone()).take_down(), [sent]);
    }
}
