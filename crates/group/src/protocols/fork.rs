//! FORK: messages of fork channels pass with their header, by which the channel passes them to the fork channel (facts section
//! 24.3).
//!
//! The layer has an effect on the state of members only: STATE or STATE_SOCK below it transfer the states of the channel and of
//! the fork channels together. Fork channels of Consort have no state, so that those of other members are discarded.
//! STATE_TRANSFER transfers the channel's own state only, as in JGroups.

use crate::wire::{self, ForkState};
use crate::{
    Cx, DropReason, Event, HeaderIds, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId, StateError,
};

crate::properties! {
    /// FORK's properties.
    ForkConfig {
        /// Whether the state that STATE and STATE_SOCK transfer has those of fork channels. All members need the same
        /// value.
        process_state_events: bool = true,
    }
}

/// The FORK layer.
pub struct Fork {
    config: ForkConfig,
}

impl Fork {
    /// Creates the layer.
    pub const fn new(config: ForkConfig) -> Self {
        Self { config }
    }

    fn frames_states(&self, cx: &Cx<'_>) -> bool {
        let is_stream = |id| matches!(id, ProtocolId::STATE | ProtocolId::STATE_SOCK);
        self.config.process_state_events && cx.below.iter().any(|slot| is_stream(slot.protocol.id()))
    }
}

impl Protocol for Fork {
    fn name(&self) -> &'static str {
        "FORK"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::FORK
    }

    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        false
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::ProvideState { token, state: Ok(Some(state)) } if self.frames_states(cx) => {
                let own = ForkState { stack: None, channel: None, state: state.clone() };
                let state = Ok(Some(wire::encode_fork_states(&[own])));
                cx.lower(Event::ProvideState { token: *token, state });
                Pass::Stop
            }
            _ => Pass::On,
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        let Event::StateReceived(Ok(Some(state))) = event else { return Pass::On };
        if !self.frames_states(cx) {
            return Pass::On;
        }
        let received = match wire::decode_fork_states(state) {
            Ok(states) => {
                let mut own = None;
                for one in states {
                    if one.stack.is_none() && one.channel.is_none() {
                        own.get_or_insert(one.state);
                    } else {
                        cx.count_drop(DropReason::Unexpected, |_| {
                            format!(
                                "the state of fork channel {:?} of fork stack {:?}",
                                one.channel, one.stack
                            )
                        });
                    }
                }
                Ok(own)
            }
            Err(error) => Err(StateError::Refused(format!(
                "the provider has no FORK with process_state_events in its stack, as this member has: {error}"
            ))),
        };
        cx.raise(Event::StateReceived(received));
        Pass::Stop
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};
    use crate::{ForkHeader, HeaderBody, Message};
    use bytes::Bytes;

    /// The state protocol below.
    struct StateStub(ProtocolId);

    impl Protocol for StateStub {
        fn name(&self) -> &'static str {
            "STATE_STUB"
        }
        fn id(&self) -> ProtocolId {
            self.0
        }
    }

    fn harness_above(id: ProtocolId, process_state_events: bool) -> Harness {
        Harness::with_layers(
            1,
            vec![Box::new(StateStub(id)), Box::new(Fork::new(ForkConfig { process_state_events }))],
        )
    }

    fn harness() -> Harness {
        harness_above(ProtocolId::STATE, true)
    }

    fn provided(harness: &mut Harness, state: Option<&'static [u8]>) -> Option<Bytes> {
        let state = Ok(state.map(Bytes::from_static));
        harness.lower(Event::ProvideState { token: 7, state });
        match harness.take_down_events().pop() {
            Some(Event::ProvideState { token: 7, state }) => state.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn received(harness: &mut Harness, state: &'static [u8]) -> Result<Option<Bytes>, StateError> {
        harness.raise(Event::StateReceived(Ok(Some(Bytes::from_static(state)))));
        match harness.take_up_events().pop() {
            Some(Event::StateReceived(state)) => state,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_of_fork_channels_pass_with_their_header() {
        let header = ForkHeader { stack: Some("s".to_owned()), channel: Some("c".to_owned()) };
        let mut message =
            Message::bytes(None, "x").with_header(ProtocolId::FORK, HeaderBody::Fork(Box::new(header)));
        message.src = Some(member(2));
        assert_eq!(harness().up(message.clone()).take_up(), [message]);
    }

    #[test]
    fn state_of_the_channel_is_framed_as_that_of_jgroups() {
        let mut harness = harness();
        let framed: &[u8] = &[0, 0, 0, 0, 0, 2, b'o', b'k'];
        assert_eq!(provided(&mut harness, Some(b"ok")).unwrap(), framed);
        assert_eq!(received(&mut harness, b"\0\0\0\0\0\x02ok"), Ok(Some(Bytes::from_static(b"ok"))));
        // JGroups leaves an empty state out.
        assert_eq!(provided(&mut harness, Some(b"")), Some(Bytes::new()));
        assert_eq!(provided(&mut harness, None), None);
        assert_eq!(received(&mut harness, b""), Ok(None));
    }

    #[test]
    fn state_of_a_fork_channel_is_discarded_and_that_of_the_channel_kept() {
        let mut harness = harness();
        let both = b"\x01\0\x01s\x01\0\x01c\0\0\0\x01f\0\0\0\0\0\x02ok";
        assert_eq!(received(&mut harness, both), Ok(Some(Bytes::from_static(b"ok"))));
    }

    #[test]
    fn state_without_frames_is_an_error_that_names_the_cause() {
        match received(&mut harness(), b"plain state") {
            Err(StateError::Refused(why)) => assert!(why.contains("no FORK"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn state_passes_unchanged_above_state_transfer_and_without_process_state_events() {
        for mut harness in
            [harness_above(ProtocolId::STATE_TRANSFER, true), harness_above(ProtocolId::STATE_SOCK, false)]
        {
            assert_eq!(provided(&mut harness, Some(b"ok")), Some(Bytes::from_static(b"ok")));
            assert_eq!(received(&mut harness, b"plain"), Ok(Some(Bytes::from_static(b"plain"))));
        }
    }
}
