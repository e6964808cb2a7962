//! RED: random early drops below a full send queue. It has no effect, because the edge's queues are bounded per peer
//! and drop by priority.

use crate::{ProbeOut, Protocol, ProtocolId};

crate::properties! {
    /// RED's properties, without effect.
    RedConfig {
        /// Whether it drops messages.
        enabled: bool = true,
        /// The fraction of the queue from which it would drop.
        min_threshold: f64 = 0.5,
        /// The fraction of the queue from which it would drop all messages.
        max_threshold: f64 = 1.0,
        /// How fast the average adapts.
        weight_factor: f64 = 1.0,
    }
}

/// The RED layer.
pub struct Red {
    config: RedConfig,
}

impl Red {
    /// Creates the layer.
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
