//! The records of writes that a write owner keeps until their callers have finished.

use bytes::Bytes;
use consort_group::Address;

use crate::Version;
use crate::command::{Effect, OperationId};
use crate::cx::watermarks::Watermarks;
use crate::operation::Outcome;
use crate::topology::Topology;

/// The number of a write whose caller has left the topology. The numbers that a closing caller reports as
/// finished include those that it gave up; none is as high.
pub(crate) const ORPHANED: u64 = u64::MAX;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct WriteRecord {
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) did: WriteEffect,
    pub(crate) outcome: Outcome,
    pub(crate) skips_listeners: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteEffect {
    Put,
    Remove,
    /// From another partition in a merge, like the removal below.
    CopiedPut,
    CopiedRemoval,
    Clear,
}

impl WriteEffect {
    pub(crate) fn of(effect: &Effect) -> Self {
        match effect {
            Effect::Remove => Self::Remove,
            Effect::Copy(_) => Self::CopiedPut,
            Effect::CopyRemoval => Self::CopiedRemoval,
            _ => Self::Put,
        }
    }
}

/// Unreachable callers are members: they return with their unfinished operations and find the records.
pub(crate) fn is_caller_gone(topology: &Topology, caller: &Address) -> bool {
    !topology.contains(caller)
}

/// Whether only an adopting primary repeats an operation: its caller has gone, even if it is back as another
/// member.
pub(crate) fn is_orphan(topology: &Topology, operation: &OperationId) -> bool {
    operation.number == ORPHANED || is_caller_gone(topology, &operation.caller)
}

/// About as many records as a segment has with hundreds of callers.
const PRUNE_AT: usize = 16;

/// At most [`crate::cx::calls::CALLS_MAX`] of each caller.
#[derive(Default)]
pub(crate) struct Records {
    records: Vec<WriteRecord>,
    prune_at: usize,
    /// The outcomes of writes that changed nothing, known to the primary of this term only.
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

    /// A repetition must not change anything either, because the caller may have received the outcome.
    pub(crate) fn answered(&mut self, operation: OperationId, outcome: Outcome, watermarks: &Watermarks) {
        if self.answers.len() >= self.prune_answers_at.max(PRUNE_AT) {
            self.answers.retain(|(operation, _)| !watermarks.is_finished(operation));
            self.prune_answers_at = 2 * self.answers.len();
        }
        self.answers.push((operation, outcome));
    }

    pub(crate) fn answer(&self, operation: &OperationId) -> Option<&Outcome> {
        self.answers.iter().rev().find(|(other, _)| other == operation).map(|(_, outcome)| outcome)
    }

    /// Callers ignore responses of an earlier term.
    pub(crate) fn forget_answers(&mut self) {
        self.answers = Vec::new();
    }

    /// Whatever departed callers report, their records stay unfinished.
    pub(crate) fn orphan(&mut self, is_gone: impl Fn(&Address) -> bool) {
        for record in self.records.iter_mut().filter(|record| is_gone(&record.operation.caller)) {
            record.operation.number = ORPHANED;
        }
    }

    pub(crate) fn find(&self, operation: &OperationId) -> Option<&WriteRecord> {
        self.records.iter().rev().find(|record| record.operation == *operation)
    }

    pub(crate) fn of_write(&mut self, key: &[u8], version: Version) -> Option<&mut WriteRecord> {
        self.records.iter_mut().find(|record| record.version == version && record.key == key)
    }

    pub(crate) fn has_newer(&self, key: &[u8], version: Version) -> bool {
        self.records.iter().any(|record| record.version > version && record.key == key)
    }

    pub(crate) fn is_unfinished(&self, key: &[u8], watermarks: &Watermarks) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.key == key && !watermarks.is_finished(&record.operation))
    }

    /// A finished record may count as unfinished again when its caller has left, and is handed over then; so
    /// this forgets finished records first.
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

    pub(crate) fn unfinished(&self, cx: &crate::cx::Cx) -> impl Iterator<Item = &WriteRecord> {
        let is_finished = |one: &OperationId| {
            cx.watermarks.is_finished(one) || one.caller == cx.local && one.number < cx.calls.finished_below()
        };
        self.records.iter().filter(move |record| !is_finished(&record.operation))
    }
}
