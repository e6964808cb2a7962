//! Layers that make trouble, for tests: DISCARD loses messages, DELAY holds them up, SHUFFLE reorders and DUPL
//! repeats them. They sit right above the transport; all chance comes from the stack's seed.

mod delay;
mod discard;
mod duplicate;
mod shuffle;

pub use delay::{Delay, DelayConfig};
pub use discard::{Discard, DiscardConfig};
pub use duplicate::{Duplicate, DuplicateConfig};
pub use shuffle::{Shuffle, ShuffleConfig};

use crate::ProtocolId;

/// None of them has a header; JGroups numbers DISCARD only.
const NO_HEADER: ProtocolId = ProtocolId(0);
