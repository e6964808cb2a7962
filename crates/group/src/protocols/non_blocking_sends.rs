//! NON_BLOCKING_SENDS: keeps sends during the processing of a received message from blocking. It has no
//! effect on the wire, and none here: no layer blocks, and a channel's receiver sends with a call that
//! returns at once. A stack that names it loads and runs unchanged.
//!
//! JGroups marks such messages to be dropped when credits are missing, because it would block the thread that
//! reads from the network. Here they wait in the flow control layer and are not lost.

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
