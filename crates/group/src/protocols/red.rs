//! RED: random early drops below a full send queue. It has no wire effect (facts 20.4), and none here: the edge's
//! queues are bounded per peer and drop by lane, so that a stack that names RED loads and runs unchanged.

use crate::{ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// RED's properties, accepted and shown.
    RedConfig {
        /// Whether it drops at all.
        enabled: bool = true,
        /// The part of the queue from which it would drop.
        min_threshold: f64 = 0.5,
        /// The part of the queue from which it would drop everything.
        max_threshold: f64 = 1.0,
        /// How fast the average follows.
        weight_factor: f64 = 1.0,
    }
}

/// The protocol.
pub struct Red {
    config: RedConfig,
}

impl Red {
    /// A layer that lets everything pass.
    pub const fn new(config: RedConfig) -> Self {
        Self { config }
    }
}

impl Protocol for Red {
    fn name(&self) -> &'static str {
        "RED"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("dropped_msgs", 0);
    }
}
