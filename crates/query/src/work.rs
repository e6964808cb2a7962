//! How much a query may do with one entity, in steps.

use crate::limits::ENTITY_STEPS_MAX;

/// Counts the steps that are taken with one entity, up to a limit.
///
/// A step takes about a nanosecond: it is a comparison of two values, a field that is read, four bytes of a text in which
/// other text is searched, or a byte that is written to a row. A query that needs more steps fails, so that no entity
/// occupies a thread for longer.
#[derive(Debug)]
pub struct Work {
    limit: u64,
    done: u64,
}

/// A query needs more steps for one entity than it may take. Nothing is made of the entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the query needs more than {ENTITY_STEPS_MAX} steps for one entity: it has too many conditions for the length or the \
     number of the values in the fields that it names. Use fewer conditions, or store shorter values"
)]
pub struct Exceeded;

impl Default for Work {
    /// The work of one entity.
    fn default() -> Self {
        Self::up_to(ENTITY_STEPS_MAX)
    }
}

impl Work {
    /// At most so many steps.
    pub const fn up_to(limit: u64) -> Self {
        Self { limit, done: 0 }
    }

    /// How many steps were taken.
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// How many steps may still be taken.
    pub(crate) const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.done)
    }

    /// Counts steps.
    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), Exceeded> {
        self.done = self.done.saturating_add(steps);
        if self.done > self.limit { Err(Exceeded) } else { Ok(()) }
    }

    /// Counts the steps of looking at so many bytes, four in a step.
    pub(crate) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.spend(1 + bytes as u64 / 4)
    }
}
