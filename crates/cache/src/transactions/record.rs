//! The record of a transaction, which all members have, under the transaction's id. The decision is a change of the record.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Change, Condition, Lifetime, Version};
use serde::{Deserialize, Serialize};

use super::limits::{COMPLETED_RETENTION, FINISH_TIME_MAX, PREPARE_TIME_MAX, TAKE_OVER_AFTER};

/// Where the locks of a cache are, and the record of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// On all members.
    Shared,
    /// On one member, which alone has the local cache.
    Local,
}

/// The state of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum State {
    /// Its keys are being locked.
    Preparing,
    /// Its keys are locked and validated.
    Prepared,
    /// The commit is decided and cannot be undone.
    Committing,
    /// All writes are made.
    Committed,
    /// It changes nothing.
    RolledBack,
}

/// The decision about a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// No member knows the transaction.
    Unknown,
    /// All branches commit.
    Committed,
    /// All branches roll back.
    RolledBack,
    /// Some branches were committed with one phase, and others roll back.
    Mixed,
}

/// A value that a transaction sets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Value {
    /// The value.
    pub bytes: Vec<u8>,
    /// Its lifespan.
    pub lifespan: Option<Duration>,
    /// Its max-idle time.
    pub max_idle: Option<Duration>,
}

/// The change of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Intent {
    /// The key.
    pub key: Vec<u8>,
    /// The key's version when it was locked; `None` without an entry. Only this version is replaced, so that two members' writes
    /// have one effect.
    pub had: Option<u64>,
    /// `None` removes the key.
    pub value: Option<Value>,
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

/// The part of a transaction in one cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Branch {
    /// The cache.
    pub cache: String,
    /// Where the locks of its keys are.
    pub scope: Scope,
    /// Its state.
    pub state: State,
    /// The member that prepares or commits the branch. In a local cache it is the cache's member.
    pub server: String,
    /// The branch waits for its client's recovery instead of being rolled back.
    pub is_recoverable: bool,
    /// The time after which the prepared branch is rolled back.
    pub timeout: Duration,
    /// In the order of their keys; empty once the branch is completed and its keys are unlocked.
    pub intents: Vec<Intent>,
}

/// A transaction that a program of a member has begun. The record gets its branches together with the decision, and is removed at
/// the end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// The member.
    pub member: String,
    /// The time after which the undecided transaction is rolled back.
    pub timeout: Duration,
}

/// The record of a transaction.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The caches that it changes.
    pub branches: Vec<Branch>,
    /// `None` for a client's transaction.
    pub opened: Option<Opened>,
    /// The right to make the decided writes. Another claim replaces it.
    pub claim: u64,
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
    /// The record of a transaction of a member's program, before its decision.
    pub(crate) const fn opened(member: String, timeout: Duration) -> Self {
        Self { branches: Vec::new(), opened: Some(Opened { member, timeout }), claim: 0 }
    }

    pub(crate) fn branch(&mut self, cache: &str) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.cache == cache)
    }

    fn any(&self, state: State) -> bool {
        self.branches.iter().any(|branch| branch.state == state)
    }

    /// A program's transaction without a decision.
    pub(crate) const fn is_undecided(&self) -> bool {
        self.opened.is_some() && self.branches.is_empty()
    }

    /// Decides the commit by this member if possible, else the rollback.
    pub(crate) fn commit(&mut self, server: &str, claim: u64) -> Decision {
        let is_lost = self.any(State::RolledBack) || self.any(State::Preparing);
        if is_lost {
            let is_mixed = self.any(State::Committing) || self.any(State::Committed);
            self.roll_back_open();
            return if is_mixed { Decision::Mixed } else { Decision::RolledBack };
        }
        for branch in self.branches.iter_mut().filter(|branch| branch.state == State::Prepared) {
            branch.state = State::Committing;
            self.claim = claim;
            if branch.scope == Scope::Shared {
                server.clone_into(&mut branch.server);
            }
        }
        Decision::Committed
    }

    /// Decides the rollback where still possible.
    pub(crate) fn roll_back(&mut self) -> Decision {
        self.roll_back_open();
        let is_committed = self.any(State::Committing) || self.any(State::Committed);
        match (is_committed, self.any(State::RolledBack)) {
            (true, true) => Decision::Mixed,
            (true, false) => Decision::Committed,
            (false, _) => Decision::RolledBack,
        }
    }

    fn roll_back_open(&mut self) {
        let is_open = |branch: &&mut Branch| matches!(branch.state, State::Preparing | State::Prepared);
        self.branches.iter_mut().filter(is_open).for_each(|branch| branch.state = State::RolledBack);
    }

    pub(crate) fn is_completed(&self) -> bool {
        !self.is_undecided()
            && self.branches.iter().all(|branch| matches!(branch.state, State::Committed | State::RolledBack))
    }

    /// Whether a branch waits for its client's recovery.
    pub(crate) fn is_in_doubt(&self, age: Duration) -> bool {
        let waits = |branch: &Branch| branch.state == State::Prepared && branch.is_recoverable;
        self.branches.iter().any(|branch| waits(branch) && age > branch.timeout)
    }

    /// `missing_for` is the time since a member was lost; `None` for a member.
    pub(crate) fn timeout_action(
        &self,
        age: Duration,
        missing_for: impl Fn(&str) -> Option<Duration>,
    ) -> TimeoutAction {
        if let Some(opened) = self.opened.as_ref().filter(|_| self.is_undecided()) {
            return match missing_for(&opened.member).is_some() || age > opened.timeout {
                true => TimeoutAction::RollBack,
                false => TimeoutAction::Nothing,
            };
        }
        for branch in &self.branches {
            let missing_for = missing_for(&branch.server);
            match branch.state {
                State::Committing
                    if age > FINISH_TIME_MAX || missing_for.is_some_and(|time| time > TAKE_OVER_AFTER) =>
                {
                    return TimeoutAction::Finish;
                }
                State::Preparing if missing_for.is_some() || age > PREPARE_TIME_MAX => {
                    return TimeoutAction::RollBack;
                }
                State::Prepared if !branch.is_recoverable && age > branch.timeout => {
                    return TimeoutAction::RollBack;
                }
                _ => {}
            }
        }
        let has_locks = self.branches.iter().any(|branch| !branch.intents.is_empty());
        match self.is_completed() {
            // Locks that cannot be released by then are released without the record.
            true if age > COMPLETED_RETENTION => TimeoutAction::Forget,
            true if has_locks && age > TAKE_OVER_AFTER => TimeoutAction::Release,
            true if self.opened.is_some() && age > TAKE_OVER_AFTER => TimeoutAction::Forget,
            _ => TimeoutAction::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(states: &[State]) -> Record {
        let branch = |(n, state): (usize, &State)| Branch {
            cache: format!("cache {n}"),
            scope: Scope::Shared,
            state: *state,
            server: "A".to_owned(),
            is_recoverable: false,
            timeout: Duration::from_secs(60),
            intents: Vec::new(),
        };
        Record { branches: states.iter().enumerate().map(branch).collect(), opened: None, claim: 0 }
    }

    fn states(record: &Record) -> Vec<State> {
        record.branches.iter().map(|branch| branch.state).collect()
    }

    /// Facts 2.13.
    #[test]
    fn transaction_commits_in_all_caches_or_in_none() {
        use State::{Committed, Committing, Prepared, Preparing, RolledBack};
        for (before, code, after) in [
            (&[Prepared, Prepared][..], Decision::Committed, &[Committing, Committing][..]),
            (&[Committed, Prepared], Decision::Committed, &[Committed, Committing]),
            (&[Committed], Decision::Committed, &[Committed]),
            (&[Prepared, RolledBack], Decision::RolledBack, &[RolledBack, RolledBack]),
            (&[Prepared, Preparing], Decision::RolledBack, &[RolledBack, RolledBack]),
            (&[Committed, RolledBack], Decision::Mixed, &[Committed, RolledBack]),
        ] {
            let mut record = record(before);
            assert_eq!((record.commit("B", 1), &states(&record)[..]), (code, after), "{before:?}");
        }
        for (before, code, after) in [
            (&[Prepared, Preparing][..], Decision::RolledBack, &[RolledBack, RolledBack][..]),
            (&[RolledBack], Decision::RolledBack, &[RolledBack]),
            (&[Committed], Decision::Committed, &[Committed]),
            (&[Committing, Prepared], Decision::Mixed, &[Committing, RolledBack]),
        ] {
            let mut record = record(before);
            assert_eq!((record.roll_back(), &states(&record)[..]), (code, after), "{before:?}");
        }
    }

    #[test]
    fn abandoned_transaction_ends_after_its_timeout() {
        let second = Duration::from_secs(1);
        let timeout_action = |state, age, is_member: bool| {
            record(&[state]).timeout_action(age, |_| (!is_member).then_some(age))
        };
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
        assert_eq!(kept.timeout_action(1_000 * second, |_| Some(second)), TimeoutAction::Nothing);
        assert!(kept.is_in_doubt(61 * second) && !kept.is_in_doubt(59 * second));
        let mut locked = record(&[State::Committed]);
        locked.branches[0].intents.push(Intent { key: vec![1], had: None, value: None });
        assert_eq!(locked.timeout_action(TAKE_OVER_AFTER + second, |_| None), TimeoutAction::Release);
    }
}
