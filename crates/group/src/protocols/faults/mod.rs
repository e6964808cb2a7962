//! Fault-injection layers for tests, directly above the transport. The stack's seed gives all randomness.

mod delay;
mod discard;
mod discard_payload;
mod duplicate;
mod shuffle;

pub use delay::{Delay, DelayConfig};
pub use discard::{Discard, DiscardConfig};
pub use discard_payload::{DiscardPayload, DiscardPayloadConfig};
pub use duplicate::{Duplicate, DuplicateConfig};
pub use shuffle::{Shuffle, ShuffleConfig};

use crate::ProtocolId;

/// JGroups numbers DISCARD only.
const NO_HEADER: ProtocolId = ProtocolId(0);
