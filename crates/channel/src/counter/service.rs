use std::sync::Arc;
use std::time::Duration;

use consort_group::wire::CounterOperation;
use tokio::sync::oneshot;

use super::error::CounterError;
use super::handler::CounterHandler;
use crate::channel::Channel;

/// The counters of a cluster, cheap to clone. It keeps the member running, as a clone of the channel does.
#[derive(Clone)]
pub struct CounterService {
    handler: Arc<CounterHandler>,
    channel: Channel,
}

impl CounterService {
    /// Creates the service of a channel.
    ///
    /// # Errors
    ///
    /// [`CounterError::NoProtocol`] if the channel's stack has no COUNTER.
    pub fn new(channel: &Channel) -> Result<Self, CounterError> {
        let handler = channel.extension::<CounterHandler>().ok_or(CounterError::NoProtocol)?;
        Ok(Self { handler, channel: channel.clone() })
    }

    /// Returns the channel.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the counter with this name, and creates it with `initial` if it is absent. Unlike JGroups, it always asks the
    /// coordinator, so that the counter exists on return.
    ///
    /// # Errors
    ///
    /// [`CounterError`]; [`CounterError::Refused`] if there are too many counters.
    pub async fn get_or_create(&self, name: &str, initial: i64) -> Result<Counter, CounterError> {
        let timeout = self.handler.timeout();
        let counter = Counter { service: self.clone(), name: name.into(), timeout };
        counter.run(CounterOperation::GetOrCreate(initial)).await?;
        Ok(counter)
    }

    /// Deletes a counter; nothing happens if it is absent. There is no response: the coordinator deletes it later, and a change
    /// of coordinator may bring it back.
    ///
    /// # Errors
    ///
    /// [`CounterError`] if nothing was sent.
    pub fn delete(&self, name: &str) -> Result<(), CounterError> {
        self.handler.delete(name)
    }
}

impl std::fmt::Debug for CounterService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "counters of {:?}", self.channel)
    }
}

/// A counter of the cluster, cheap to clone. Operations on a deleted counter fail with [`CounterError::Refused`].
///
/// All operations end with a [`CounterError`] after the timeout, by default COUNTER's `timeout` (60 s). An operation whose future
/// is dropped may be carried out.
#[derive(Clone)]
pub struct Counter {
    service: CounterService,
    name: Arc<str>,
    timeout: Duration,
}

impl Counter {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the timeout of this handle's operations.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the value.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn get(&self) -> Result<i64, CounterError> {
        self.add_and_get(0).await
    }

    /// Sets the value.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn set(&self, value: i64) -> Result<(), CounterError> {
        self.run(CounterOperation::Set(value)).await.map(|_| ())
    }

    /// Adds 1 and returns the new value.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn increment_and_get(&self) -> Result<i64, CounterError> {
        self.add_and_get(1).await
    }

    /// Subtracts 1 and returns the new value.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn decrement_and_get(&self) -> Result<i64, CounterError> {
        self.add_and_get(-1).await
    }

    /// Adds a number and returns the new value, which wraps around as in Java.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn add_and_get(&self, delta: i64) -> Result<i64, CounterError> {
        self.run(CounterOperation::AddAndGet(delta)).await
    }

    /// Sets `update` if the value is `expected`, and returns whether it was.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn compare_and_set(&self, expected: i64, update: i64) -> Result<bool, CounterError> {
        Ok(self.compare_and_swap(expected, update).await? == expected)
    }

    /// Sets `update` if the value is `expected`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// [`CounterError`].
    pub async fn compare_and_swap(&self, expected: i64, update: i64) -> Result<i64, CounterError> {
        self.run(CounterOperation::CompareAndSet { expected, update }).await
    }

    async fn run(&self, operation: CounterOperation) -> Result<i64, CounterError> {
        let handler = &*self.service.handler;
        let (done, outcome) = oneshot::channel();
        let id = handler.begin(&self.name, operation, self.timeout, done)?;
        let _pending = Pending { handler, id };
        outcome.await.unwrap_or(Err(CounterError::Closed))
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "counter {:?}", self.name)
    }
}

/// A drop removes the operation.
struct Pending<'a> {
    handler: &'a CounterHandler,
    id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.id != 0 {
            self.handler.forget(self.id);
        }
    }
}
