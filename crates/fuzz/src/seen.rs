//! The result of a target, for the drivers.

/// The result of a target for one input.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// The number of inputs: one, or the packets of a round.
    pub given: u64,
    /// The number of accepted inputs.
    pub accepted: u64,
    /// The peak of its memory.
    pub peak: u64,
    /// Rounds after which a forged view kept members apart.
    pub apart: u64,
}

impl Seen {
    /// Returns the result of one input that was accepted or not.
    pub(crate) fn one(is_accepted: bool, peak: u64) -> Self {
        Self { given: 1, accepted: u64::from(is_accepted), peak, apart: 0 }
    }
}
