use std::sync::Arc;
use std::time::Duration;

use super::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_KEYS_MAX};
use crate::error::CacheError;

/// An error of a transaction. Each one ends the transaction. Nothing was changed, unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// Another writer has changed a key, or is about to, since the transaction read it. The transaction is rolled back; another
    /// attempt can succeed.
    #[error("a key in cache {cache} was changed since the transaction read it; repeat the transaction")]
    Conflict {
        /// The cache.
        cache: Arc<str>,
    },
    /// Another writer kept a key's lock. The transaction is rolled back; another attempt can succeed. If transactions lock the same
    /// keys in different orders, each may wait for the other until this error.
    #[error(
        "a key in cache {cache} was locked by another writer for {after:?}, perhaps in a deadlock; repeat the transaction, and \
         lock keys in the same order everywhere"
    )]
    LockTimeout {
        /// The cache.
        cache: Arc<str>,
        /// The wait.
        after: Duration,
    },
    /// An operation failed. The transaction is rolled back.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The transaction was not committed within its timeout, or its member was removed from the cluster. It is rolled back.
    #[error(
        "the transaction was rolled back before its commit, after its timeout of {0:?} or the loss of its member"
    )]
    TimedOut(Duration),
    /// The member does not learn whether the transaction is committed. All of its writes will be made, or none.
    #[error("it is unknown whether the transaction is committed; all of its writes will be made, or none")]
    Unknown,
    /// The transaction has too many or too large keys and values.
    #[error(
        "a transaction can have {TRANSACTION_KEYS_MAX} keys and {TRANSACTION_BYTES_MAX} bytes of keys and values; divide it"
    )]
    TooLarge,
    /// The cluster has as many transactions as there may be.
    #[error("the limit of {transactions} transactions or {bytes} bytes is reached")]
    TooMany {
        /// The maximum number.
        transactions: u64,
        /// The maximum bytes of all of them.
        bytes: u64,
    },
    /// The cache was opened without transactions.
    #[error("cache {0} has no transactions; open it with `is_transactional`")]
    NotTransactional(Arc<str>),
    /// The cache belongs to another manager than the transaction.
    #[error("cache {0} belongs to another manager than the transaction")]
    OtherManager(Arc<str>),
    /// The transaction has locked keys of local caches only, so that other members do not know it.
    #[error(
        "cache {0} is shared, and the transaction has locked keys of local caches before; lock a shared key first"
    )]
    LocalBefore(Arc<str>),
    /// The transaction has ended. Its outcome is that of the call that ended it.
    #[error("the transaction has ended")]
    Ended,
}

impl TransactionError {
    /// Whether another attempt can succeed: a conflict, or a lock that another writer kept.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::LockTimeout { .. })
    }
}
