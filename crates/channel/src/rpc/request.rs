//! What a caller asks for, and what comes back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Flags, Payload};

use crate::error::RpcError;

/// How many answers a group call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResponseMode {
    /// Everybody's, or until the time is over.
    #[default]
    All,
    /// The first that the filter takes.
    First,
    /// None: the call returns when the request is sent.
    None,
}

/// What a filter says to an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It counts; wait for the others.
    Take,
    /// It does not count as an answer, nor is that member waited for.
    Skip,
    /// It counts, and no more are needed.
    TakeAndStop,
}

/// Looks at answers as they come. It is called by the member's own task, so it must not wait; if it panics, the call
/// does.
pub type ResponseFilter = Arc<dyn Fn(&Address, &Payload) -> Verdict + Send + Sync>;

/// Options of a call. Cheap to clone.
#[derive(Clone)]
pub struct RequestOptions {
    /// How many answers to wait for.
    pub mode: ResponseMode,
    /// How long to wait. JGroups' default is 0 = for ever; ours is 30 s, because a caller without deadline hangs
    /// when a peer does.
    pub timeout: Duration,
    /// Flags of the request; answers carry the same without RSVP.
    pub flags: Flags,
    /// Whether a group call to a list of members goes as one unicast each instead of a multicast.
    pub anycast: bool,
    /// Members that ignore a multicast call.
    pub exclusion: Vec<Address>,
    /// Looks at the answers to a group call as they come.
    pub filter: Option<ResponseFilter>,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self {
            mode: ResponseMode::All,
            timeout: Duration::from_secs(30),
            flags: Flags::NONE,
            anycast: false,
            exclusion: Vec::new(),
            filter: None,
        }
    }
}

impl RequestOptions {
    /// Everybody's answer within this time.
    pub fn all(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// The first answer within this time.
    pub fn first(timeout: Duration) -> Self {
        Self { mode: ResponseMode::First, timeout, ..Self::default() }
    }

    /// No answer.
    pub fn none() -> Self {
        Self { mode: ResponseMode::None, ..Self::default() }
    }

    /// The same with these flags added.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// The same with one unicast per member.
    #[must_use]
    pub fn with_anycast(mut self) -> Self {
        self.anycast = true;
        self
    }

    /// The same with members that shall ignore the call.
    #[must_use]
    pub fn with_exclusion(mut self, members: impl Into<Vec<Address>>) -> Self {
        self.exclusion = members.into();
        self
    }

    /// The same with a filter (S000-53).
    #[must_use]
    pub fn with_filter(
        mut self,
        filter: impl Fn(&Address, &Payload) -> Verdict + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }
}

impl fmt::Debug for RequestOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestOptions")
            .field("mode", &self.mode)
            .field("timeout", &self.timeout)
            .field("flags", &self.flags)
            .field("anycast", &self.anycast)
            .field("exclusion", &self.exclusion)
            .field("has_filter", &self.filter.is_some())
            .finish()
    }
}

/// One member's part in a group call.
#[derive(Clone, PartialEq, Debug)]
pub struct Response {
    /// Who.
    pub member: Address,
    /// Its answer, or why there is none.
    pub result: Result<Payload, RpcError>,
}

/// The outcome of a group call: a row per member that was asked and not skipped by the filter.
pub type Responses = Vec<Response>;
