use std::time::Duration;

use super::limits::PREPARE_TIME_MAX;

/// The default wait for a key's lock, as in Infinispan.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// When a transaction locks the keys that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locking {
    /// At the commit. A key that was changed since it was read is a [`TransactionError::Conflict`](crate::TransactionError::Conflict).
    #[default]
    Optimistic,
    /// At the write, or at [`Transaction::lock`](crate::Transaction::lock). For keys that many transactions change.
    Pessimistic,
}

/// The options of a transaction ([`Transaction::with_options`](crate::Transaction::with_options)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionOptions {
    /// When keys are locked.
    pub locking: Locking,
    /// The wait for a key that another writer has locked; default [`ACQUIRE_TIMEOUT`].
    pub acquire_timeout: Duration,
    /// The time from the first lock of a pessimistic transaction to its commit, after which it is rolled back: 1 s to 10 min,
    /// 60 s by default.
    pub timeout: Duration,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { locking: Locking::default(), acquire_timeout: ACQUIRE_TIMEOUT, timeout: PREPARE_TIME_MAX }
    }
}
