//! The records of writes that a write owner keeps until their callers have finished: the caller, the effect, and the outcome for
//! the caller.

use bytes::Bytes;
use consort_group::Address;

use crate::Version;
use crate::command::{Effect, OperationId};
use crate::cx::watermarks::Watermarks;
use crate::operation::Outcome;
use crate::topology::Topology;

/// The number of a write whose caller has left the topology. When a caller has closed its cache, the operations that it reports
/// as finished include those that it gave up. None of these numbers is as high as this one.
pub(crate) const ORPHANED: u64 = u64::MAX;

/// The record of one write.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WriteRecord {
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) did: WriteEffect,
    pub(crate) outcome: Outcome,
    /// Whether no listener receives an event.
    pub(crate) skips_listeners: bool,
}

/// The effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteEffect {
    Put,
    Remove,
    /// A put that was copied from another partition in a merge, as is the removal below.
    CopiedPut,
    CopiedRemoval,
    /// A removal of all keys of a cache whose members have entries of their own.
    Clear,
}

impl WriteEffect {
    /// Returns the effect of a backup command.
    pub(crate) fn of(effect: &Effect) -> Self {
        match effect {
            Effect::Remove => Self::Remove,
            Effect::Copy(_) => Self::CopiedPut,
            Effect::CopyRemoval => Self::CopiedRemoval,
            _ => Self::Put,
        }
    }
}

/// Returns whether a caller is no longer a member. Unreachable callers are members: they return with their unfinished
/// operations and find the records.
pub(crate) fn is_caller_gone(topology: &Topology, caller: &Address) -> bool {
    !topology.contains(caller)
}

/// Returns whether an operation is repeated only by a primary that adopts it: its caller has gone, even if it is back as
/// another member.
pub(crate) fn is_orphan(topology: &Topology, operation: &OperationId) -> bool {
    operation.number == ORPHANED || is_caller_gone(topology, &operation.caller)
}

/// Records after which finished ones are pruned: about as many as a segment has at a time with hundreds of callers.
const PRUNE_AT: usize = 16;

/// The records of a segment. Bounded by the operations that callers may have under way ([`crate::cx::calls::CALLS_MAX`] each).
#[derive(Default)]
pub(crate) struct Records {
    records: Vec<WriteRecord>,
    prune_at: usize,
    /// The outcomes of writes that changed nothing. Only the primary of this term has them.
    answers: Vec<(OperationId, Outcome)>,
    prune_answers_at: usize,
}

impl Records {
    pub(crate) fn push(&mut self, record: WriteRecord, watermarks: &Watermarks) {
        if self.records.len() >= self.prune_at.max(PRUNE_AT) {
            self.prune(watermarks);
            self.prune_at = 2 * self.records.len();
        }
        self.records.push(record);
    }

    pub(crate) fn prune(&mut self, watermarks: &Watermarks) {
        self.records.retain(|record| !watermarks.is_finished(&record.operation));
    }

    /// Records the outcome of a write that changed nothing. A repetition must not change anything either, because the caller may
    /// have received the outcome.
    pub(crate) fn answered(&mut self, operation: OperationId, outcome: Outcome, watermarks: &Watermarks) {
        if self.answers.len() >= self.prune_answers_at.max(PRUNE_AT) {
            self.answers.retain(|(operation, _)| !watermarks.is_finished(operation));
            self.prune_answers_at = 2 * self.answers.len();
        }
        self.answers.push((operation, outcome));
    }

    /// Returns the outcome of a write that changed nothing.
    pub(crate) fn answer(&self, operation: &OperationId) -> Option<&Outcome> {
        self.answers.iter().rev().find(|(other, _)| other == operation).map(|(_, outcome)| outcome)
    }

    /// Forgets outcomes with a new primary term, because callers ignore responses of an earlier term.
    pub(crate) fn forget_answers(&mut self) {
        self.answers = Vec::new();
    }

    /// Keeps the records of departed callers as unfinished, whatever these callers report.
    pub(crate) fn orphan(&mut self, is_gone: impl Fn(&Address) -> bool) {
        for record in self.records.iter_mut().filter(|record| is_gone(&record.operation.caller)) {
            record.operation.number = ORPHANED;
        }
    }

    pub(crate) fn find(&self, operation: &OperationId) -> Option<&WriteRecord> {
        self.records.iter().rev().find(|record| record.operation == *operation)
    }

    /// Returns the record of a write, whether or not its caller has left since.
    pub(crate) fn of_write(&mut self, key: &[u8], version: Version) -> Option<&mut WriteRecord> {
        self.records.iter_mut().find(|record| record.version == version && record.key == key)
    }

    /// Returns whether there is a later write of this key.
    pub(crate) fn has_newer(&self, key: &[u8], version: Version) -> bool {
        self.records.iter().any(|record| record.version > version && record.key == key)
    }

    /// Returns whether there is a write of this key whose caller may not have all acknowledgements.
    pub(crate) fn is_unfinished(&self, key: &[u8], watermarks: &Watermarks) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.key == key && !watermarks.is_finished(&record.operation))
    }

    /// Returns whether the value of a key must stay available. Forgets finished records first: a finished record that stays may
    /// count as unfinished again when its caller has left, and is handed over then.
    pub(crate) fn need(&mut self, key: &[u8], watermarks: &Watermarks) -> bool {
        self.prune(watermarks);
        self.records.iter().any(|record| record.key == key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &WriteRecord> {
        self.records.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut WriteRecord> {
        self.records.iter_mut()
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&WriteRecord) -> bool) {
        self.records.retain(is_kept);
    }

    /// Returns the records that their callers have not reported as finished.
    pub(crate) fn unfinished(&self, cx: &crate::cx::Cx) -> impl Iterator<Item = &WriteRecord> {
        let is_finished = |one: &OperationId| {
            cx.watermarks.is_finished(one) || one.caller == cx.local && one.number < cx.calls.finished_below()
        };
        self.records.iter().filter(move |record| !is_finished(&record.operation))
    }
}
