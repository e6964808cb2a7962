//! The operations of an open cache on encoded keys and values.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use consort_encoding::Encoded;
use consort_grid::{
    Action, Change, Condition, Flags, Lookup, OperationError, Outcome, ReadFrom, Stored, Write, Written,
};

use crate::error::CacheError;
use crate::handler::GridHandler;
use crate::open_cache::OpenCache;
use crate::operation::Operation;
use crate::options::CacheOptions;

/// Boxed, because it would enlarge the state of all writes.
pub(crate) type Writing = Pin<Box<dyn Future<Output = Result<Written, CacheError>> + Send>>;

/// Writes that lock their keys. The transactions of a manager implement it; they are above this module.
pub(crate) trait LockedWrites: Send + Sync {
    fn write(self: Arc<Self>, cache: EncodedCache, key: Bytes, write: Write) -> Writing;

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

#[derive(Clone)]
pub(crate) struct EncodedCache {
    pub(crate) handler: Arc<GridHandler>,
    pub(crate) opened: Arc<OpenCache>,
    pub(crate) options: CacheOptions,
    /// Its writes lock their keys.
    pub(crate) locked_writes: Option<Arc<dyn LockedWrites>>,
}

impl EncodedCache {
    /// The operation begins when it is polled.
    pub(crate) fn operation(&self, key: Bytes, action: Action) -> Operation<'_> {
        self.operation_with(key, action, &self.options)
    }

    fn operation_with(&self, key: Bytes, action: Action, options: &CacheOptions) -> Operation<'_> {
        Operation::new(&self.handler, &self.opened, key, action, options)
    }

    pub(crate) fn value_here(&self, key: &[u8]) -> Lookup<Bytes> {
        match self.options.read_from {
            ReadFrom::Nearest => self.opened.value_here(key, || self.handler.now()),
            ReadFrom::Primary => Lookup::NotLocal,
        }
    }

    pub(crate) const fn reading(&self) -> Action {
        Action::Read(self.options.read_from)
    }

    pub(crate) fn putting(&self, value: Bytes) -> Change {
        Change::Put { value, lifetime: self.options.lifetime }
    }

    pub(crate) async fn read(&self, key: Bytes) -> Result<Option<Stored>, CacheError> {
        stored(self.operation(key, self.reading()).await?)
    }

    pub(crate) async fn entry(&self, key: Encoded<'_>) -> Result<Option<Stored>, CacheError> {
        let now = self.handler.now();
        let here = match self.options.read_from {
            ReadFrom::Nearest => self.opened.entry_here(key.as_slice(), || now),
            ReadFrom::Primary => Lookup::NotLocal,
        };
        match here {
            Lookup::Hit(entry) => Ok(Some(Stored::of(entry, now))),
            Lookup::Miss => Ok(None),
            Lookup::NotLocal => self.read(key.into_bytes()).await,
        }
    }

    pub(crate) async fn contains(&self, key: Bytes) -> Result<bool, CacheError> {
        // The check does not need the transfer of a large value.
        let options = CacheOptions { response_bytes_max: 0, ..self.options };
        match self.operation_with(key, self.reading(), &options).await {
            Err(OperationError::LargeResponse { .. }) => Ok(true),
            outcome => Ok(stored(outcome?)?.is_some()),
        }
    }

    pub(crate) async fn write(&self, key: Bytes, write: Write) -> Result<Written, CacheError> {
        match &self.locked_writes {
            None => self.write_unlocked(key, write).await,
            Some(locked_writes) => locked_writes.clone().write(self.clone(), key, write).await,
        }
    }

    pub(crate) async fn write_unlocked(&self, key: Bytes, write: Write) -> Result<Written, CacheError> {
        written(self.operation(key, Action::Write(write)).await?)
    }

    pub(crate) async fn write_with(
        &self,
        key: Bytes,
        write: Write,
        flags: Flags,
    ) -> Result<Written, CacheError> {
        let options = CacheOptions { flags: self.options.flags | flags, ..self.options };
        Self { options, ..self.clone() }.write(key, write).await
    }

    /// Does not return the previous entry.
    pub(crate) async fn change(
        &self,
        key: Bytes,
        condition: Condition,
        change: Change,
    ) -> Result<Written, CacheError> {
        self.write(key, Write { condition, change, wants_previous: false }).await
    }

    /// Returns the previous entry, or the current one if the condition does not hold.
    pub(crate) async fn exchange(
        &self,
        key: Bytes,
        condition: Condition,
        change: Change,
    ) -> Result<Written, CacheError> {
        self.write(key, Write { condition, change, wants_previous: true }).await
    }
}

fn stored(outcome: Outcome) -> Result<Option<Stored>, CacheError> {
    match outcome {
        Outcome::Read(stored) => Ok(stored),
        Outcome::Written(_) => Err(unexpected()),
    }
}

pub(crate) fn written(outcome: Outcome) -> Result<Written, CacheError> {
    match outcome {
        Outcome::Written(written) => Ok(written),
        Outcome::Read(_) => Err(unexpected()),
    }
}

/// A response of another kind: a node responds to a write with its result.
fn unexpected() -> CacheError {
    CacheError::Operation(OperationError::Uncertain)
}
