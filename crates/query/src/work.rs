use crate::limits::ENTITY_STEPS_MAX;

/// Steps taken with one entity, of about a nanosecond: a comparison of two values, a field read, four bytes of searched text, or
/// a byte written to a row.
#[derive(Debug)]
pub struct Work {
    limit: u64,
    done: u64,
}

/// Too many steps for one entity, which yields no row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the query needs more than {ENTITY_STEPS_MAX} steps for one entity: it has too many conditions for the length or the \
     number of the values in the fields that it names. Use fewer conditions, or store shorter values"
)]
pub struct Exceeded;

impl Default for Work {
    fn default() -> Self {
        Self::up_to(ENTITY_STEPS_MAX)
    }
}

impl Work {
    /// Limits the work to this many steps.
    pub const fn up_to(limit: u64) -> Self {
        Self { limit, done: 0 }
    }

    /// Returns the steps taken.
    pub const fn done(&self) -> u64 {
        self.done
    }

    pub(crate) const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.done)
    }

    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), Exceeded> {
        self.done = self.done.saturating_add(steps);
        if self.done > self.limit { Err(Exceeded) } else { Ok(()) }
    }

    pub(crate) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.spend(1 + bytes as u64 / 4)
    }
}
