//! Counters (facts section 2.14).

use std::fmt;
use std::sync::Arc;

use consort_hotrod::ops::counter::{Action, CounterConfig, Request, Response};
use consort_hotrod::{Flags, MediaType, RequestBody, ResponseBody, Status, Text};

use crate::client::Client;
use crate::client_state::{CacheState, ClientState};
use crate::counter_listeners::CounterListenerTable;
use crate::error::ClientError;
use crate::operation::{Answer, RequestSpec};

const COUNTERS: &str = "org.infinispan.COUNTER";

/// A counter shared by all clients; cheap to clone.
///
/// An operation with an unknown outcome is not repeated ([`ClientError::is_outcome_unknown`]).
#[derive(Clone)]
pub struct Counter {
    client: Arc<ClientState>,
    counters: Arc<CacheState>,
    listeners: Arc<CounterListenerTable>,
    name: Text,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter {}", self.name)
    }
}

impl Client {
    /// Returns a handle of the counter; without the counter, the first operation fails.
    pub fn counter(&self, name: &str) -> Counter {
        let inner = self.inner();
        Counter {
            client: inner.clone(),
            counters: inner.cache(COUNTERS),
            listeners: self.counter_listeners().clone(),
            name: name.into(),
        }
    }

    /// Returns the names of all counters.
    pub async fn counter_names(&self) -> Result<Vec<String>, ClientError> {
        let answer = ask(self.inner(), &self.inner().cache(COUNTERS), Request::Names).await?;
        match answer.body {
            ResponseBody::Counter(Response::Names(names)) => {
                Ok(names.iter().map(ToString::to_string).collect())
            }
            _ => Err(answer.unexpected()),
        }
    }
}

async fn ask(client: &ClientState, counters: &CacheState, request: Request) -> Result<Answer, ClientError> {
    let ask = RequestSpec {
        body: RequestBody::Counter(request),
        flags: Flags::NONE,
        key_type: MediaType::Unspecified,
        value_type: MediaType::Unspecified,
        timeout: client.settings.timeout,
    };
    client.perform(counters, ask, None).await
}

impl Counter {
    /// Returns the counter's name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) const fn name_text(&self) -> &Text {
        &self.name
    }

    pub(crate) const fn at(&self) -> (&Arc<ClientState>, &Arc<CacheState>) {
        (&self.client, &self.counters)
    }

    pub(crate) fn listeners(&self) -> &CounterListenerTable {
        &self.listeners
    }

    async fn ask(&self, action: Action) -> Result<Answer, ClientError> {
        ask(&self.client, &self.counters, Request::Of(self.name.clone(), action)).await
    }

    async fn ask_it(&self, action: Action) -> Result<Answer, ClientError> {
        let answer = self.ask(action).await?;
        match answer.status {
            Status::Success => Ok(answer),
            Status::NotFound => Err(ClientError::NoSuchCounter(self.name.to_string())),
            Status::NotExecutedWithPrevious => Err(ClientError::OutOfBounds(self.name.to_string())),
            _ => Err(answer.unexpected()),
        }
    }

    async fn value(&self, action: Action) -> Result<i64, ClientError> {
        let answer = self.ask_it(action).await?;
        match answer.body {
            ResponseBody::Counter(Response::Value(value)) => Ok(value),
            _ => Err(answer.unexpected()),
        }
    }

    /// Creates the counter unless it exists; returns whether it did.
    pub async fn create(&self, config: CounterConfig) -> Result<bool, ClientError> {
        is(&self.ask(Action::Create(config)).await?)
    }

    /// Returns whether the counter exists.
    pub async fn is_defined(&self) -> Result<bool, ClientError> {
        is(&self.ask(Action::IsDefined).await?)
    }

    /// Returns the configuration.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCounter`], as all following operations.
    pub async fn config(&self) -> Result<CounterConfig, ClientError> {
        let answer = self.ask_it(Action::Configuration).await?;
        match answer.body {
            ResponseBody::Counter(Response::Configuration(config)) => Ok(config),
            _ => Err(answer.unexpected()),
        }
    }

    /// Returns the value.
    pub async fn get(&self) -> Result<i64, ClientError> {
        self.value(Action::Get).await
    }

    /// Adds `delta` and returns the new value; a weak counter returns 0.
    ///
    /// # Errors
    ///
    /// [`ClientError::OutOfBounds`] if a bounded counter cannot have that value.
    pub async fn add(&self, delta: i64) -> Result<i64, ClientError> {
        self.value(Action::AddAndGet(delta)).await
    }

    /// Sets the value and returns the previous one.
    ///
    /// # Errors
    ///
    /// As [`Counter::add`].
    pub async fn swap(&self, value: i64) -> Result<i64, ClientError> {
        self.value(Action::GetAndSet(value)).await
    }

    /// Sets the value if it equals `expected`; returns the previous one.
    ///
    /// # Errors
    ///
    /// As [`Counter::add`].
    pub async fn compare_and_swap(&self, expected: i64, value: i64) -> Result<i64, ClientError> {
        self.value(Action::CompareAndSwap(expected, value)).await
    }

    /// Resets the counter to its initial value.
    pub async fn reset(&self) -> Result<(), ClientError> {
        self.ask_it(Action::Reset).await.map(drop)
    }

    /// Removes the counter's value.
    pub async fn remove(&self) -> Result<(), ClientError> {
        self.ask(Action::Remove).await.map(drop)
    }
}

fn is(answer: &Answer) -> Result<bool, ClientError> {
    match answer.status {
        Status::Success => Ok(true),
        Status::NotExecuted => Ok(false),
        _ => Err(answer.unexpected()),
    }
}
