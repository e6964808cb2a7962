pub(crate) mod exception;
pub(crate) mod key_error;

use consort_cache::{CacheError, OperationError};
use consort_hotrod::{ResponseBody, Status};
use consort_memory::Reservation;
use tokio::sync::OwnedSemaphorePermit;

use crate::limits::ERROR_TEXT_MAX;
use crate::reply::exception::{class_of, with_class};
use crate::reply::key_error::describe_key;

/// The end of a text that is cut off.
const CUT_OFF: &str = "…";

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

    /// A longer text is cut off: it has a value of the request, which may have 64 MiB, and errors have no reservation.
    pub(crate) fn error(status: Status, text: impl Into<String>) -> Self {
        let mut text = with_class(text.into());
        if text.len() > ERROR_TEXT_MAX {
            text.truncate(text.floor_char_boundary(ERROR_TEXT_MAX - CUT_OFF.len()));
            text.push_str(CUT_OFF);
            text.shrink_to_fit();
        }
        Self::new(status, ResponseBody::Error(text.into()))
    }

    /// The exception's name tells clients that the cache does not exist (facts section 2.5).
    pub(crate) fn no_cache(name: &str) -> Self {
        let why = if name.is_empty() {
            "Default cache requested but not configured".to_owned()
        } else {
            format!("Cache with name '{name}' not found amongst the configured caches")
        };
        Self::error(Status::ParseError, format!("{}: {why}", exception::CACHE_NOT_FOUND))
    }
}

#[derive(Debug)]
pub(crate) struct Refusal {
    status: Status,
    /// Of the exception, if the text does not begin with the class or its number.
    class: Option<&'static str>,
    text: String,
}

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { status: Status::ServerError, class: None, text: text.into() }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A refusal with the class of an exception.
    pub(crate) fn of(class: &'static str, text: impl Into<String>) -> Self {
        Self { class: Some(class), ..Self::new(text) }
    }

    pub(crate) fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn for_key(self, nth: usize, key: &[u8]) -> Self {
        let class = self.class.or_else(|| class_of(&self.text));
        Self { class, text: describe_key(nth, key, self.text), ..self }
    }
}

/// The number of the exception that Infinispan throws, and the status. Errors that another server may not have make clients try
/// another server.
fn number_and_status(error: &CacheError) -> (Option<&'static str>, Status) {
    match error {
        CacheError::Operation(OperationError::TimedOut(_)) => (Some("ISPN000476"), Status::TimedOut),
        CacheError::Locked { .. } => (Some("ISPN000299"), Status::TimedOut),
        CacheError::Operation(OperationError::Uncertain) => (Some("ISPN000400"), Status::NodeSuspected),
        CacheError::Operation(OperationError::Degraded { .. }) => (Some("ISPN000306"), Status::ServerError),
        CacheError::Operation(OperationError::MemoryFull { .. }) => (Some("ISPN000514"), Status::ServerError),
        CacheError::Closed => (Some("ISPN000323"), Status::IllegalLifecycle),
        _ => (None, Status::ServerError),
    }
}

impl From<CacheError> for Refusal {
    fn from(error: CacheError) -> Self {
        let (number, status) = number_and_status(&error);
        let text = match &error {
            CacheError::Operation(OperationError::Degraded { .. }) => {
                format!("not all owners of this key are available: {error}")
            }
            error => error.to_string(),
        };
        let text = number.map_or_else(|| text.clone(), |number| format!("{number}: {text}"));
        Self::new(text).with_status(status)
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal { status, class, text }: Refusal) -> Self {
        let text = class.map_or_else(|| text.clone(), |class| format!("{class}: {text}"));
        Self::error(status, text)
    }
}

impl From<CacheError> for Answer {
    fn from(error: CacheError) -> Self {
        Refusal::from(error).into()
    }
}
