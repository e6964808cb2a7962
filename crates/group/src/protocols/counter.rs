//! COUNTER: the settings of distributed atomic counters, whose messages pass unchanged. The channel's counter service holds the
//! counters (facts section 24.4).

use std::time::Duration;

use crate::{HeaderIds, MessageBatch, ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// COUNTER's properties.
    CounterConfig {
        /// Whether messages of counters are sent without bundling.
        bypass_bundling: bool = false,
        /// The timeout of an operation on a counter.
        timeout: Duration = Duration::from_secs(60),
        /// How long a new coordinator waits for the counters of the other members. Until then operations wait.
        reconciliation_timeout: Duration = Duration::from_secs(10),
        /// How many members after the coordinator get each change of a counter.
        num_backups: usize = 1,
    }
}

impl CounterConfig {
    /// Checks that operations can be answered.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.timeout.is_zero() {
            return Err(("timeout", "timeout must be greater than 0".to_owned()));
        }
        Ok(())
    }
}

/// The COUNTER layer.
pub struct Counter {
    config: CounterConfig,
}

impl Counter {
    /// Creates the layer.
    pub const fn new(config: CounterConfig) -> Self {
        Self { config }
    }
}

impl Protocol for Counter {
    fn name(&self) -> &'static str {
        "COUNTER"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::COUNTER
    }

    fn wants(&self, _batch: &MessageBatch, _headers: HeaderIds) -> bool {
        false
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Position, ProtocolConfig};
    use crate::harness::{Harness, member};
    use crate::protocols::registry;
    use crate::{HeaderBody, Message};

    #[test]
    fn messages_of_counters_pass_with_their_header() {
        let mut harness = Harness::new(Counter::new(CounterConfig::default()));
        let mut message =
            Message::bytes(Some(member(1)), vec![1, 7]).with_header(ProtocolId::COUNTER, HeaderBody::Counter);
        message.src = Some(member(2));
        assert_eq!(harness.up(message.clone()).take_up(), [message]);
        let mut sent = Message::bytes(None, vec![1, 7]).with_header(ProtocolId::COUNTER, HeaderBody::Counter);
        sent.src = Some(member(1));
        assert_eq!(harness.send(sent.clone()).take_down(), [sent]);
    }

    #[test]
    fn attributes_are_those_of_jgroups_and_a_timeout_of_zero_is_refused() {
        let with = |name: &str, value: &str| {
            let attributes = vec![(name.to_owned(), value.to_owned(), Position::default())];
            let config = ProtocolConfig { name: "COUNTER".into(), attributes, position: Position::default() };
            registry::layer(&config, &mut |_: &str| Ok(Vec::new())).unwrap()
        };
        let mut out = ProbeOut::default();
        with("num_backups", "2").unwrap().probe(&mut out);
        let shown: Vec<(&str, &str)> =
            out.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("bypass_bundling", "false"),
                ("timeout", "60s"),
                ("reconciliation_timeout", "10s"),
                ("num_backups", "2")
            ]
        );
        let error = with("timeout", "0").err().unwrap().to_string();
        assert_eq!(error, "COUNTER: timeout must be greater than 0");
    }
}
