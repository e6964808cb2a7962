//! The record of a transaction, which all servers have, under the transaction's id.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use consort_cache::{Change, Condition, Lifetime, Version};
use consort_hotrod::ops::transaction::{Xid, xa};
use serde::{Deserialize, Serialize};

use crate::limits::{COMPLETED_RETENTION, FINISH_TIME_MAX, PREPARE_TIME_MAX, TAKE_OVER_AFTER};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    Preparing,
    Prepared,
    /// The commit is decided and cannot be undone.
    Committing,
    Committed,
    RolledBack,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lifespan: Option<Duration>,
    pub(crate) max_idle: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Intent {
    pub(crate) key: Vec<u8>,
    /// The key's version when it was locked; `None` without an entry. Only this version is replaced, so that two servers' writes
    /// have one effect.
    pub(crate) had: Option<u64>,
    /// `None` removes the key.
    pub(crate) value: Option<Value>,
}

impl Intent {
    pub(crate) const fn condition(&self) -> Condition {
        match self.had {
            Some(version) => Condition::Version(Version(version)),
            None => Condition::Absent,
        }
    }

    pub(crate) fn change(&self) -> Change {
        match &self.value {
            Some(Value { bytes, lifespan, max_idle }) => Change::Put {
                value: Bytes::copy_from_slice(bytes),
                lifetime: Lifetime { lifespan: *lifespan, max_idle: *max_idle },
            },
            None => Change::Remove,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Branch {
    pub(crate) cache: String,
    pub(crate) state: State,
    /// The member that prepares or commits the branch.
    pub(crate) server: String,
    /// The branch waits for its client's recovery instead of being rolled back.
    pub(crate) is_recoverable: bool,
    pub(crate) timeout: Duration,
    /// In the order of their keys; empty once the branch is completed and its keys are unlocked.
    pub(crate) intents: Vec<Intent>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) branches: Vec<Branch>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeoutAction {
    Nothing,
    RollBack,
    Finish,
    Release,
    Forget,
}

impl Record {
    pub(crate) fn branch(&mut self, cache: &str) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.cache == cache)
    }

    fn any(&self, state: State) -> bool {
        self.branches.iter().any(|branch| branch.state == state)
    }

    /// Decides the commit by this member if possible, else the rollback. Returns the response's code; `OK` is valid once all
    /// writes are made.
    pub(crate) fn commit(&mut self, server: &str) -> i32 {
        let is_lost = self.any(State::RolledBack) || self.any(State::Preparing);
        if is_lost {
            let is_mixed = self.any(State::Committing) || self.any(State::Committed);
            self.roll_back_open();
            return if is_mixed { xa::HEURISTIC_MIXED } else { xa::HEURISTIC_ROLLBACK };
        }
        for branch in self.branches.iter_mut().filter(|branch| branch.state == State::Prepared) {
            branch.state = State::Committing;
            server.clone_into(&mut branch.server);
        }
        xa::OK
    }

    /// Decides the rollback where still possible. Returns the response's code.
    pub(crate) fn roll_back(&mut self) -> i32 {
        self.roll_back_open();
        let is_committed = self.any(State::Committing) || self.any(State::Committed);
        match (is_committed, self.any(State::RolledBack)) {
            (true, true) => xa::HEURISTIC_MIXED,
            (true, false) => xa::HEURISTIC_COMMIT,
            (false, _) => xa::OK,
        }
    }

    fn roll_back_open(&mut self) {
        let is_open = |branch: &&mut Branch| matches!(branch.state, State::Preparing | State::Prepared);
        self.branches.iter_mut().filter(is_open).for_each(|branch| branch.state = State::RolledBack);
    }

    pub(crate) fn is_completed(&self) -> bool {
        self.branches.iter().all(|branch| matches!(branch.state, State::Committed | State::RolledBack))
    }

    pub(crate) fn is_in_doubt(&self, age: Duration) -> bool {
        let waits = |branch: &Branch| branch.state == State::Prepared && branch.is_recoverable;
        self.branches.iter().any(|branch| waits(branch) && age > branch.timeout)
    }

    pub(crate) fn timeout_action(&self, age: Duration, is_member: impl Fn(&str) -> bool) -> TimeoutAction {
        for branch in &self.branches {
            let is_abandoned = !is_member(&branch.server);
            match branch.state {
                State::Committing if age > if is_abandoned { TAKE_OVER_AFTER } else { FINISH_TIME_MAX } => {
                    return TimeoutAction::Finish;
                }
                State::Preparing if is_abandoned || age > PREPARE_TIME_MAX => return TimeoutAction::RollBack,
                State::Prepared if !branch.is_recoverable && age > branch.timeout => {
                    return TimeoutAction::RollBack;
                }
                _ => {}
            }
        }
        match self.is_completed() {
            true if self.branches.iter().any(|branch| !branch.intents.is_empty())
                && age > TAKE_OVER_AFTER =>
            {
                TimeoutAction::Release
            }
            true if age > COMPLETED_RETENTION => TimeoutAction::Forget,
            _ => TimeoutAction::Nothing,
        }
    }
}

pub(crate) fn record_key(xid: &Xid) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + 1 + xid.global.len() + xid.branch.len());
    key.put_i32(xid.format);
    key.put_u8(xid.global.len() as u8);
    key.put_slice(&xid.global);
    key.put_slice(&xid.branch);
    key
}

pub(crate) fn xid_from_key(mut key: &[u8]) -> Option<Xid> {
    let (format, global) = (key.try_get_i32().ok()?, key.try_get_u8().ok()?);
    let (global, branch) = key.split_at_checked(global.into())?;
    Some(Xid { format, global: Bytes::copy_from_slice(global), branch: Bytes::copy_from_slice(branch) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(states: &[State]) -> Record {
        let branch = |(n, state): (usize, &State)| Branch {
            cache: format!("cache {n}"),
            state: *state,
            server: "A".to_owned(),
            is_recoverable: false,
            timeout: Duration::from_secs(60),
            intents: Vec::new(),
        };
        Record { branches: states.iter().enumerate().map(branch).collect() }
    }

    fn states(record: &Record) -> Vec<State> {
        record.branches.iter().map(|branch| branch.state).collect()
    }

    /// Facts 2.13.
    #[test]
    fn transaction_commits_in_all_caches_or_in_none() {
        use State::{Committed, Committing, Prepared, Preparing, RolledBack};
        for (before, code, after) in [
            (&[Prepared, Prepared][..], xa::OK, &[Committing, Committing][..]),
            (&[Committed, Prepared], xa::OK, &[Committed, Committing]),
            (&[Committed], xa::OK, &[Committed]),
            (&[Prepared, RolledBack], xa::HEURISTIC_ROLLBACK, &[RolledBack, RolledBack]),
            (&[Prepared, Preparing], xa::HEURISTIC_ROLLBACK, &[RolledBack, RolledBack]),
            (&[Committed, RolledBack], xa::HEURISTIC_MIXED, &[Committed, RolledBack]),
        ] {
            let mut record = record(before);
            assert_eq!((record.commit("B"), &states(&record)[..]), (code, after), "{before:?}");
        }
        for (before, code, after) in [
            (&[Prepared, Preparing][..], xa::OK, &[RolledBack, RolledBack][..]),
            (&[RolledBack], xa::OK, &[RolledBack]),
            (&[Committed], xa::HEURISTIC_COMMIT, &[Committed]),
            (&[Committing, Prepared], xa::HEURISTIC_MIXED, &[Committing, RolledBack]),
        ] {
            let mut record = record(before);
            assert_eq!((record.roll_back(), &states(&record)[..]), (code, after), "{before:?}");
        }
    }

    #[test]
    fn abandoned_transaction_ends_after_its_timeout() {
        let second = Duration::from_secs(1);
        let timeout_action =
            |state, age, is_member: bool| record(&[state]).timeout_action(age, |_| is_member);
        assert_eq!(timeout_action(State::Preparing, second, true), TimeoutAction::Nothing);
        assert_eq!(timeout_action(State::Preparing, second, false), TimeoutAction::RollBack);
        assert_eq!(
            timeout_action(State::Preparing, PREPARE_TIME_MAX + second, true),
            TimeoutAction::RollBack
        );
        assert_eq!(
            timeout_action(State::Prepared, 59 * second, false),
            TimeoutAction::Nothing,
            "any remaining member may commit it"
        );
        assert_eq!(timeout_action(State::Prepared, 61 * second, true), TimeoutAction::RollBack);
        assert_eq!(timeout_action(State::Committing, TAKE_OVER_AFTER + second, true), TimeoutAction::Nothing);
        assert_eq!(timeout_action(State::Committing, TAKE_OVER_AFTER + second, false), TimeoutAction::Finish);
        assert_eq!(timeout_action(State::Committing, FINISH_TIME_MAX + second, true), TimeoutAction::Finish);
        assert_eq!(timeout_action(State::Committed, second, true), TimeoutAction::Nothing);
        assert_eq!(
            timeout_action(State::RolledBack, COMPLETED_RETENTION + second, true),
            TimeoutAction::Forget
        );
        let mut kept = record(&[State::Prepared]);
        kept.branches[0].is_recoverable = true;
        assert_eq!(kept.timeout_action(1_000 * second, |_| false), TimeoutAction::Nothing);
        assert!(kept.is_in_doubt(61 * second) && !kept.is_in_doubt(59 * second));
        let mut locked = record(&[State::Committed]);
        locked.branches[0].intents.push(Intent { key: vec![1], had: None, value: None });
        assert_eq!(locked.timeout_action(TAKE_OVER_AFTER + second, |_| true), TimeoutAction::Release);
    }

    #[test]
    fn transaction_ids_are_read_back() {
        for (global, branch) in [(&b"g"[..], &b"b"[..]), (b"", b""), (&[7; 64], &[9; 64])] {
            let xid = Xid {
                format: -5,
                global: Bytes::copy_from_slice(global),
                branch: Bytes::copy_from_slice(branch),
            };
            assert_eq!(xid_from_key(&record_key(&xid)), Some(xid));
        }
        assert_eq!(xid_from_key(b"\0\0\0\0\x05abc"), None);
        assert_eq!(xid_from_key(b"\0"), None);
    }
}
