//! Counters (facts section 2.14).

use std::fmt;
use std::sync::Arc;

use consort_hotrod::ops::counter::{Action, CounterConfig, Request, Response};
use consort_hotrod::{Flags, MediaType, RequestBody, ResponseBody, Status, Text};

use crate::limits::TIMEOUT;
use crate::client::{CacheState, Client, Inner};
use crate::error::ClientError;
use crate::operation::{Answer, RequestSpec};

/// What the official clients name in the place of a cache.
const COUNTERS: &str = "org.infinispan.COUNTER";

/// A counter on the servers, which all clients share. Cheap to clone.
///
/// An operation of which nobody knows whether it was done is not repeated: [`ClientError::is_outcome_unknown`] tells.
#[derive(Clone)]
pub struct Counter {
    client: Arc<Inner>,
    counters: Arc<CacheState>,
    name: Text,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter {}", self.name)
    }
}

impl Client {
    /// The counter of this name. Whether there is one shows with the first operation.
    pub fn counter(&self, name: &str) -> Counter {
        let inner = self.inner();
        Counter { client: inner.clone(), counters: inner.cache(COUNTERS), name: name.into() }
    }

    /// The names of all counters.
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

async fn ask(client: &Inner, counters: &CacheState, request: Request) -> Result<Answer, ClientError> {
    let ask = RequestSpec {
        body: RequestBody::Counter(request),
        flags: Flags::NONE,
        key_type: MediaType::Unspecified,
        value_type: MediaType::Unspecified,
        timeout: TIMEOUT,
    };
    client.perform(counters, ask, None).await
}

impl Counter {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) const fn name_text(&self) -> &Text {
        &self.name
    }

    /// Whose it is, and among what.
    pub(crate) const fn at(&self) -> (&Arc<Inner>, &Arc<CacheState>) {
        (&self.client, &self.counters)
    }

    async fn ask(&self, action: Action) -> Result<Answer, ClientError> {
        ask(&self.client, &self.counters, Request::Of(self.name.clone(), action)).await
    }

    /// Asks for something that needs the counter.
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

    /// Makes it, unless there is one of this name. Whether there was none.
    pub async fn create(&self, config: CounterConfig) -> Result<bool, ClientError> {
        is(&self.ask(Action::Create(config)).await?)
    }

    /// Whether there is one of this name.
    pub async fn is_defined(&self) -> Result<bool, ClientError> {
        is(&self.ask(Action::IsDefined).await?)
    }

    /// What it is like.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoSuchCounter`], as all that follow.
    pub async fn config(&self) -> Result<CounterConfig, ClientError> {
        let answer = self.ask_it(Action::Configuration).await?;
        match answer.body {
            ResponseBody::Counter(Response::Configuration(config)) => Ok(config),
            _ => Err(answer.unexpected()),
        }
    }

    /// What it has.
    pub async fn get(&self) -> Result<i64, ClientError> {
        self.value(Action::Get).await
    }

    /// Changes it by so much, and returns what it has then. A weak counter does not know, and says 0.
    ///
    /// # Errors
    ///
    /// [`ClientError::OutOfBounds`] if a bounded counter cannot have that.
    pub async fn add(&self, delta: i64) -> Result<i64, ClientError> {
        self.value(Action::AddAndGet(delta)).await
    }

    /// Gives it a value, and returns what it had.
    ///
    /// # Errors
    ///
    /// As [`Counter::add`].
    pub async fn swap(&self, value: i64) -> Result<i64, ClientError> {
        self.value(Action::GetAndSet(value)).await
    }

    /// Gives it a value if it has the expected one. What it had: the expected one if that was done.
    ///
    /// # Errors
    ///
    /// As [`Counter::add`].
    pub async fn compare_and_swap(&self, expected: i64, value: i64) -> Result<i64, ClientError> {
        self.value(Action::CompareAndSwap(expected, value)).await
    }

    /// Gives it what it had at first.
    pub async fn reset(&self) -> Result<(), ClientError> {
        self.ask_it(Action::Reset).await.map(drop)
    }

    /// Takes what it has away.
    pub async fn remove(&self) -> Result<(), ClientError> {
        self.ask(Action::Remove).await.map(drop)
    }
}

/// Yes or no.
fn is(answer: &Answer) -> Result<bool, ClientError> {
    match answer.status {
        Status::Success => Ok(true),
        Status::NotExecuted => Ok(false),
        _ => Err(answer.unexpected()),
    }
}
