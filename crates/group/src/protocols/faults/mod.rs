//! Fault-injection layers for tests: DISCARD drops messages, DELAY delays them, SHUFFLE reorders and DUPL
//! repeats them. They sit directly above the transport. All randomness comes from the stack's seed.

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

/// These layers have no headers. JGroups numbers DISCARD only.
const NO_HEADER: ProtocolId = ProtocolId(0);
