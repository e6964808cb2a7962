//! Operations as clients saw them: what the checkers judge.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, Change, Lifetime, OperationError, Outcome, Parting, ReadFrom, Stored, Version, Write, Written,
};
use consort_group::Time;

use super::checks::expiry::ROUNDED;
use crate::faults::FASTEST;

/// An operation as a client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) node: usize,
    /// Who waits for it, if somebody does.
    pub(crate) client: Option<usize>,
    /// Whether it is one of several of a client, who waits for all of them.
    pub(crate) is_of_several: bool,
    pub(crate) key: Bytes,
    pub(crate) action: Action,
    pub(crate) began: Time,
    /// `None` = its member has ended before.
    pub(crate) ended: Option<Time>,
    pub(crate) result: Option<Result<Outcome, OperationError>>,
    /// Members that may have answered, if it is a read.
    pub(crate) readers: BTreeSet<usize>,
    /// The history of the topology that its member had; none if that changed meanwhile, so that nobody knows on which side it was
    /// done.
    pub(crate) partings: Option<Arc<[Parting]>>,
    /// Whether one of them knew that owners were away: of what was not used there, nobody can tell then whether it lives.
    pub(crate) is_degraded: bool,
    /// Whether its member has begun a cache of its own, as it had not seen anybody who had it. What is written there is given up
    /// when they meet.
    pub(crate) is_by_itself: bool,
    /// Whether one of them was left out meanwhile and did not know it: others may have written without it.
    pub(crate) is_excused: bool,
}

impl Operation {
    /// What a read gave, and when.
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

    /// What a write did, and when that was acknowledged.
    pub(crate) fn written(&self) -> Option<(&Written, Time)> {
        match (&self.result, self.ended) {
            (Some(Ok(Outcome::Written(written))), Some(ended)) => Some((written, ended)),
            _ => None,
        }
    }

    /// Whether nobody has asked for it but who looks what there is in a quiet cluster.
    pub(crate) fn is_look(&self) -> bool {
        self.client.is_none() && !self.is_of_several
    }

    /// The version of what a write has changed, if it was acknowledged and has changed something.
    pub(crate) fn acknowledged(&self) -> Option<(Version, Time)> {
        let (written, ended) = self.written().filter(|(written, _)| written.is_done)?;
        let is_change = written.was_present || !self.is_removal();
        is_change.then_some((written.version, ended))
    }

    pub(crate) fn is_removal(&self) -> bool {
        self.write().is_some_and(|write| write.change == Change::Remove)
    }

    /// The value that it puts.
    pub(crate) fn value(&self) -> Option<&Bytes> {
        match &self.write()?.change {
            Change::Put { value, .. } => Some(value),
            Change::Remove | Change::Clear => None,
        }
    }

    /// How long what it puts lives.
    pub(crate) fn lifetime(&self) -> Option<Lifetime> {
        match &self.write()?.change {
            Change::Put { lifetime, .. } => Some(*lifetime),
            Change::Remove | Change::Clear => None,
        }
    }

    /// The same if its end is known.
    pub(crate) fn lifespan(&self) -> Option<Duration> {
        self.lifetime()?.lifespan
    }

    /// How long what it puts lives at least, if that is not for ever: perhaps nobody uses it.
    pub(crate) fn least_life(&self) -> Option<Duration> {
        self.lifetime().and_then(least)
    }

    /// From when on its key may have been absent because of it: a removal from its beginning, a put when what it put has
    /// expired by the fastest clock.
    pub(crate) fn absent_from(&self) -> Option<Time> {
        if self.is_removal() {
            return Some(self.began);
        }
        let least = self.least_life()?.div_f64(FASTEST).saturating_sub(ROUNDED);
        Some(self.began + least)
    }

    /// Whether its key may have been absent by then because of it.
    pub(crate) fn may_be_absent(&self, by: Time) -> bool {
        self.absent_from().is_some_and(|from| from <= by)
    }

    /// Whether it is a write that may have been done, or may still be done, and nobody was told.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.write().is_some()
            && match &self.result {
                None => true,
                // What a store has not taken stands while an owner lives that has it.
                Some(Err(error)) => matches!(
                    error,
                    OperationError::TimedOut(_)
                        | OperationError::Uncertain
                        | OperationError::NotStored { .. }
                ),
                Some(Ok(_)) => false,
            }
    }

    /// Whether it is a write that has failed, and has changed nothing.
    pub(crate) fn is_undone(&self) -> bool {
        self.write().is_some() && matches!(self.result, Some(Err(_))) && !self.is_uncertain()
    }
}

/// When an entry's time is over that nobody uses, if ever.
pub(crate) fn least(lifetime: Lifetime) -> Option<Duration> {
    lifetime.lifespan.into_iter().chain(lifetime.max_idle).min()
}
