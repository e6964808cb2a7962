//! What a write owner remembers of writes until their callers have finished: who has begun them, what they did, and
//! what the caller is to be told.

use std::collections::BTreeMap;

use bytes::Bytes;
use consort_group::Address;

use crate::Version;
use crate::command::{Effect, OperationId};
use crate::operation::Outcome;

/// The number of a write whose caller is no member any more. What a caller says to be finished once it has closed its cache is
/// what it gave up then, too: below it is nothing of this number.
pub(crate) const ORPHANED: u64 = u64::MAX;

/// One write.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Record {
    pub(crate) operation: OperationId,
    pub(crate) key: Bytes,
    pub(crate) version: Version,
    pub(crate) did: Did,
    pub(crate) outcome: Outcome,
    /// Whether no listener is told.
    pub(crate) is_silent: bool,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Did {
    Put,
    Remove,
    /// The same, of a side that was merged.
    CopiedPut,
    CopiedRemoval,
    /// It removed all keys of a cache whose members have each their own.
    Clear,
}

impl Did {
    /// What a backup command did.
    pub(crate) fn of(effect: &Effect) -> Self {
        match effect {
            Effect::Remove => Self::Remove,
            Effect::Copy(_) => Self::CopiedPut,
            Effect::CopyRemoval => Self::CopiedRemoval,
            _ => Self::Put,
        }
    }
}

/// Below which number everything of a caller is finished, as far as was heard.
#[derive(Default)]
pub(crate) struct Watermarks {
    finished: BTreeMap<Address, u64>,
}

impl Watermarks {
    pub(crate) fn heard(&mut self, caller: &Address, finished: u64) {
        match self.finished.get_mut(caller) {
            Some(known) => *known = finished.max(*known),
            None => {
                self.finished.insert(caller.clone(), finished);
            }
        }
    }

    pub(crate) fn of(&self, caller: &Address) -> u64 {
        self.finished.get(caller).copied().unwrap_or(0)
    }

    pub(crate) fn is_finished(&self, operation: &OperationId) -> bool {
        operation.number < self.of(&operation.caller)
    }

    /// Forgets callers. Bounded by the members: whoever is none has nothing under way.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&Address) -> bool) {
        self.finished.retain(|caller, _| is_kept(caller));
    }
}

/// Records after which the finished ones are looked for; as many as a segment has at a time with hundreds of callers.
const PRUNE_AT: usize = 16;

/// The records of a segment. Bounded by what callers may have under way ([`super::calls::CALLS_MAX`] each).
#[derive(Default)]
pub(crate) struct Records {
    records: Vec<Record>,
    prune_at: usize,
    /// What callers of writes that changed nothing are told. Only the primary of this reign has it.
    answers: Vec<(OperationId, Outcome)>,
    prune_answers_at: usize,
}

impl Records {
    pub(crate) fn push(&mut self, record: Record, watermarks: &Watermarks) {
        if self.records.len() >= self.prune_at.max(PRUNE_AT) {
            self.prune(watermarks);
            self.prune_at = 2 * self.records.len();
        }
        self.records.push(record);
    }

    pub(crate) fn prune(&mut self, watermarks: &Watermarks) {
        self.records.retain(|record| !watermarks.is_finished(&record.operation));
    }

    /// A write that changed nothing must not change something when it is sent again: its caller may have been told.
    pub(crate) fn answered(&mut self, operation: OperationId, outcome: Outcome, watermarks: &Watermarks) {
        if self.answers.len() >= self.prune_answers_at.max(PRUNE_AT) {
            self.answers.retain(|(operation, _)| !watermarks.is_finished(operation));
            self.prune_answers_at = 2 * self.answers.len();
        }
        self.answers.push((operation, outcome));
    }

    /// What the caller of a write that changed nothing is told.
    pub(crate) fn answer(&self, operation: &OperationId) -> Option<&Outcome> {
        self.answers.iter().rev().find(|(other, _)| other == operation).map(|(_, outcome)| outcome)
    }

    /// With another reign, callers take nothing of what the last one has answered.
    pub(crate) fn forget_answers(&mut self) {
        self.answers = Vec::new();
    }

    /// Callers have gone: what there is of theirs stays unfinished, whatever they say.
    pub(crate) fn orphan(&mut self, is_gone: impl Fn(&Address) -> bool) {
        for record in self.records.iter_mut().filter(|record| is_gone(&record.operation.caller)) {
            record.operation.number = ORPHANED;
        }
    }

    pub(crate) fn find(&self, operation: &OperationId) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.operation == *operation)
    }

    /// The record of a write, whoever its caller is by now.
    pub(crate) fn of_write(&mut self, key: &[u8], version: Version) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.version == version && record.key == key)
    }

    /// Whether there is a later write of this key.
    pub(crate) fn has_newer(&self, key: &[u8], version: Version) -> bool {
        self.records.iter().any(|record| record.version > version && record.key == key)
    }

    /// Whether there is a write of this key whose caller may not have all acknowledgements.
    pub(crate) fn is_unfinished(&self, key: &[u8], watermarks: &Watermarks) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.key == key && !watermarks.is_finished(&record.operation))
    }

    /// Whether the value of a key has to stay at hand. Records that are finished are forgotten with it: one that is kept may
    /// count as unfinished again, when its caller has gone, and is handed on then.
    pub(crate) fn need(&mut self, key: &[u8], watermarks: &Watermarks) -> bool {
        self.prune(watermarks);
        self.records.iter().any(|record| record.key == key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.iter_mut()
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&Record) -> bool) {
        self.records.retain(is_kept);
    }

    /// Those whose callers have not said that they are finished.
    pub(crate) fn unfinished(&self, cx: &super::Cx) -> impl Iterator<Item = &Record> {
        let is_finished = |one: &OperationId| {
            cx.watermarks.is_finished(one) || one.caller == cx.local && one.number < cx.calls.finished_below()
        };
        self.records.iter().filter(move |record| !is_finished(&record.operation))
    }
}
