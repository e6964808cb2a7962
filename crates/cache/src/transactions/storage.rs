//! The operations of caches that the protocol of transactions needs. The protocol has no other input: in the simulation another
//! storage executes the operations in the order of a seed.

use std::time::Duration;

use bytes::Bytes;
use consort_grid::{Change, Condition, Lifetime, Stored, Write, Written};

use super::record::Scope;
use crate::error::CacheError;

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Space<'a> {
    Records(Scope),
    Locks(Scope),
    Cache(&'a str),
}

/// The keys of an internal cache.
pub(crate) trait Keys: Send {
    fn next(&mut self) -> impl Future<Output = Option<Result<Bytes, CacheError>>> + Send;
}

pub(crate) trait Storage: Send + Sync + 'static {
    type Keys: Keys;

    /// Reads from the primary.
    fn read(
        &self,
        space: Space<'_>,
        key: &Bytes,
    ) -> impl Future<Output = Result<Option<Stored>, CacheError>> + Send;

    fn write(
        &self,
        space: Space<'_>,
        key: &Bytes,
        write: Write,
    ) -> impl Future<Output = Result<Written, CacheError>> + Send;

    fn keys(&self, space: Space<'_>) -> Self::Keys;

    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// The time since any beginning.
    fn now(&self) -> Duration;

    /// This member.
    fn member(&self) -> &str;

    /// A number that no other call on any member returns.
    fn unique(&self) -> u128;

    /// `None` if the cache is not open here.
    fn scope_of(&self, cache: &str) -> Option<Scope>;

    /// The members that have a shared cache, the oldest first; `None` if it is not open here.
    fn members_of(&self, cache: &str) -> Option<Vec<String>>;

    /// The number of records, and their bytes.
    fn usage(&self, scope: Scope) -> (u64, u64);
}

/// Whether the write may still be applied.
pub(crate) const fn is_uncertain(error: &CacheError) -> bool {
    use consort_grid::OperationError::{TimedOut, Uncertain};
    matches!(error, CacheError::Operation(TimedOut(_) | Uncertain))
}

pub(crate) const fn put(condition: Condition, value: Bytes, lifetime: Lifetime) -> Write {
    Write { condition, change: Change::Put { value, lifetime }, wants_previous: false }
}

pub(crate) const fn removal(condition: Condition) -> Write {
    Write { condition, change: Change::Remove, wants_previous: false }
}
