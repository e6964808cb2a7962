/// The result of a target for one input.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// One, or the packets of a round.
    pub given: u64,
    /// Accepted inputs.
    pub accepted: u64,
    /// Peak memory.
    pub peak: u64,
    /// Rounds after which a forged view kept members apart.
    pub apart: u64,
}

impl Seen {
    pub(crate) fn one(is_accepted: bool, peak: u64) -> Self {
        Self { given: 1, accepted: u64::from(is_accepted), peak, apart: 0 }
    }
}
