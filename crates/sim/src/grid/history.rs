//! Operations as clients saw them: the input of the checkers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Change, Lifetime, OperationError, Outcome, ReadFrom, SplitPoint, Stored, Version, Write, Written,
};
use consort_group::Time;

use crate::faults::FASTEST;

/// Stores keep times in milliseconds, and round each time that they are read.
pub(crate) const ROUNDED: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) node: usize,
    pub(crate) client: Option<usize>,
    pub(crate) is_of_bulk: bool,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    pub(crate) began: Time,
    /// `None` if its member has ended before.
    pub(crate) ended: Option<Time>,
    pub(crate) result: Option<Result<Outcome, OperationError>>,
    pub(crate) readers: BTreeSet<usize>,
    /// The history of its member's topology. `None` if that changed meanwhile, because the partition of the
    /// operation is unknown then.
    pub(crate) split_points: Option<Arc<[SplitPoint]>>,
    /// A reader knew that owners were unreachable: it cannot tell whether an entry that it did not use lives.
    pub(crate) is_degraded: bool,
    /// Its member has begun its own cache, because it had not seen a member with the cache. Writes there are
    /// given up at a merge.
    pub(crate) is_by_itself: bool,
    /// A reader was removed from the topology meanwhile and did not know it: other members may have written without it.
    pub(crate) is_excused: bool,
}

impl Operation {
    pub(crate) fn read(&self) -> Option<(Option<&Stored>, Time)> {
        match (&self.result, self.ended) {
            (Some(Ok(Outcome::Read(found))), Some(ended)) => Some((found.as_ref(), ended)),
            _ => None,
        }
    }

    pub(crate) fn write(&self) -> Option<&Write> {
        match &self.action {
            Action::Write(write) => Some(write),
            Action::Read(_) => None,
        }
    }

    pub(crate) fn is_primary_read(&self) -> bool {
        self.action == Action::Read(ReadFrom::Primary)
    }

    pub(crate) fn written(&self) -> Option<(&Written, Time)> {
        match (&self.result, self.ended) {
            (Some(Ok(Outcome::Written(written))), Some(ended)) => Some((written, ended)),
            _ => None,
        }
    }

    pub(crate) fn is_look(&self) -> bool {
        self.client.is_none() && !self.is_of_bulk
    }

    pub(crate) fn acknowledged(&self) -> Option<(Version, Time)> {
        let (written, ended) = self.written().filter(|(written, _)| written.is_done)?;
        let is_change = written.was_present || !self.is_removal();
        is_change.then_some((written.version, ended))
    }

    pub(crate) fn is_removal(&self) -> bool {
        self.write().is_some_and(|write| write.change == Change::Remove)
    }

    pub(crate) fn value(&self) -> Option<&Bytes> {
        match &self.write()?.change {
            Change::Put { value, .. } => Some(value),
            Change::Remove | Change::Clear => None,
        }
    }

    pub(crate) fn lifetime(&self) -> Option<Lifetime> {
        match &self.write()?.change {
            Change::Put { lifetime, .. } => Some(*lifetime),
            Change::Remove | Change::Clear => None,
        }
    }

    pub(crate) fn lifespan(&self) -> Option<Duration> {
        self.lifetime()?.lifespan
    }

    /// The entry may never be used.
    pub(crate) fn least_life(&self) -> Option<Duration> {
        self.lifetime().and_then(least)
    }

    /// The begin of a removal; for a put, the time when its entry has expired by the fastest clock.
    pub(crate) fn absent_from(&self) -> Option<Time> {
        if self.is_removal() {
            return Some(self.began);
        }
        let least = self.least_life()?.div_f64(FASTEST).saturating_sub(ROUNDED);
        Some(self.began + least)
    }

    pub(crate) fn may_be_absent(&self, by: Time) -> bool {
        self.absent_from().is_some_and(|from| from <= by)
    }

    pub(crate) fn is_uncertain(&self) -> bool {
        self.write().is_some()
            && match &self.result {
                None => true,
                // A write that a store has not taken stands while an owner lives that has it.
                Some(Err(error)) => matches!(
                    error,
                    OperationError::TimedOut(_)
                        | OperationError::Uncertain
                        | OperationError::StoreWriteFailed { .. }
                ),
                Some(Ok(_)) => false,
            }
    }

    pub(crate) fn is_undone(&self) -> bool {
        self.write().is_some() && matches!(self.result, Some(Err(_))) && !self.is_uncertain()
    }
}

pub(crate) fn least(lifetime: Lifetime) -> Option<Duration> {
    lifetime.lifespan.into_iter().chain(lifetime.max_idle).min()
}
