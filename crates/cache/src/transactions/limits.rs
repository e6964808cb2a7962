//! Limits of transactions, for the cluster and for one member.

use std::time::Duration;

/// The time that a single write waits for a locked key: less than clients wait for a response.
pub const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a single write's lock outlives the timeout of its operation, if its member goes. The operation begins
/// [`TAKE_OVER_AFTER`] before, or not at all.
pub const LOCK_LEASE: Duration = Duration::from_secs(45);

/// Tracked transactions: those in progress, and those of clients that have ended within the last minute and that the clients have
/// not forgotten; more than a thousand per second.
pub const TRANSACTIONS_MAX: u64 = 100_000;

/// Bytes of all pending writes of transactions. Every member has them.
pub const TRANSACTIONS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes of a client's transaction in one cache, and of a member's transaction in all caches: its keys and values, which are sent
/// to all members as one value.
pub const TRANSACTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Keys that a member's transaction reads or writes. Each is locked or validated by an operation of its own.
pub const TRANSACTION_KEYS_MAX: usize = 10_000;

/// The longest time for which a transaction waits for its decision.
pub const DECISION_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The time after which a transaction that is being prepared is rolled back.
pub const PREPARE_TIME_MAX: Duration = Duration::from_secs(60);

/// How long after a member's last sign others complete its decided transactions: its earlier messages have arrived by then, or
/// are refused. A live member waits as long before it repeats a write whose result it does not know.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(15);

/// The time for which a member makes decided writes before it claims them again. A member that was suspended meanwhile finds the
/// claim of another one. Its last write begins within this time, and takes effect before [`TAKE_OVER_AFTER`].
pub const CLAIM_TIME: Duration = Duration::from_secs(5);

/// The time that a live member may take to write a decided transaction, before others do it.
pub const FINISH_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// The time for which the outcome of a client's transaction is kept, as in Infinispan.
pub const COMPLETED_RETENTION: Duration = Duration::from_secs(60);

/// The interval of the search for abandoned transactions.
pub const REAP_INTERVAL: Duration = Duration::from_secs(5);
