pub(crate) mod key_error;

use consort_cache::{CacheError, OperationError};
use consort_hotrod::{ResponseBody, Status};
use consort_memory::Reservation;
use tokio::sync::OwnedSemaphorePermit;

use crate::reply::key_error::describe_key;

#[derive(Debug)]
pub(crate) struct ResponseBytes {
    pub(crate) bytes: Reservation,
    pub(crate) places: Vec<OwnedSemaphorePermit>,
}

impl ResponseBytes {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.bytes()
    }
}

pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) body: ResponseBody,
    pub(crate) held: Option<Box<ResponseBytes>>,
}

impl Answer {
    pub(crate) const fn new(status: Status, body: ResponseBody) -> Self {
        Self { status, body, held: None }
    }

    pub(crate) fn holding(self, held: Box<ResponseBytes>) -> Self {
        Self { held: Some(held), ..self }
    }

    pub(crate) fn holding_some(self, held: Option<Box<ResponseBytes>>) -> Self {
        Self { held, ..self }
    }

    pub(crate) const fn of(status: Status) -> Self {
        Self::new(status, ResponseBody::Empty)
    }

    pub(crate) const fn success(body: ResponseBody) -> Self {
        Self::new(Status::Success, body)
    }

    pub(crate) fn error(status: Status, text: impl Into<String>) -> Self {
        Self::new(status, ResponseBody::Error(text.into().into()))
    }

    /// The exception's name tells clients that the cache does not exist (facts section 2.5).
    pub(crate) fn no_cache(name: &str) -> Self {
        Self::error(
            Status::ParseError,
            format!(
                "org.infinispan.server.hotrod.CacheNotFoundException: Cache with name '{name}' not found \
                 amongst the configured caches"
            ),
        )
    }
}

#[derive(Debug)]
pub(crate) struct Refusal {
    status: Status,
    text: String,
}

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { status: Status::ServerError, text: text.into() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn for_key(self, nth: usize, key: &[u8]) -> Self {
        Self { text: describe_key(nth, key, self.text), ..self }
    }
}

impl From<CacheError> for Refusal {
    /// Errors that another server may not have make clients try another server.
    fn from(error: CacheError) -> Self {
        let status = match &error {
            CacheError::Operation(OperationError::TimedOut(_)) => Status::TimedOut,
            CacheError::Operation(OperationError::Uncertain) => Status::NodeSuspected,
            CacheError::Closed => Status::IllegalLifecycle,
            _ => Status::ServerError,
        };
        let text = match &error {
            CacheError::Operation(OperationError::Degraded { .. }) => {
                format!("ISPN000306: not all owners of this key are available: {error}")
            }
            error => error.to_string(),
        };
        Self { status, text }
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal { status, text }: Refusal) -> Self {
        Self::error(status, text)
    }
}

impl From<CacheError> for Answer {
    fn from(error: CacheError) -> Self {
        Refusal::from(error).into()
    }
}
