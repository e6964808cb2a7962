//! Options of a call, and its outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Flags, Payload};

use crate::error::RpcError;

/// The number of responses that a group call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResponseMode {
    /// All members' responses, or until the timeout.
    #[default]
    All,
    /// The first that the filter accepts.
    First,
    /// None: the call returns when the request is sent.
    None,
}

/// A filter's decision on a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterDecision {
    /// Count the response, and wait for the others.
    Accept,
    /// Drop the response, and do not wait for that member.
    Ignore,
    /// Count the response, and complete the call.
    AcceptAndStop,
}

/// A filter of responses. The member's task calls it, so it must not block; its panic is the call's.
pub type ResponseFilter = Arc<dyn Fn(&Address, &Payload) -> FilterDecision + Send + Sync>;

/// Options of a call. They are cheap to clone.
#[derive(Clone)]
pub struct RequestOptions {
    /// The number of responses to wait for.
    pub mode: ResponseMode,
    /// The timeout. JGroups' default is 0 = for ever; here it is 30 s, because a caller without deadline hangs when a
    /// peer does.
    pub timeout: Duration,
    /// Flags of the request; responses have the same without RSVP.
    pub flags: Flags,
    /// Whether a call to a list of members is sent as one unicast each instead of a multicast.
    pub anycast: bool,
    /// Members that ignore a multicast call.
    pub exclusion: Vec<Address>,
    /// The filter of responses to a group call.
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
    /// Waits for all responses within this time.
    pub fn all(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// Waits for the first response within this time.
    pub fn first(timeout: Duration) -> Self {
        Self { mode: ResponseMode::First, timeout, ..Self::default() }
    }

    /// Waits for no response.
    pub fn none() -> Self {
        Self { mode: ResponseMode::None, ..Self::default() }
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// Sends one unicast per member.
    #[must_use]
    pub fn with_anycast(mut self) -> Self {
        self.anycast = true;
        self
    }

    /// Sets members that ignore the call.
    #[must_use]
    pub fn with_exclusion(mut self, members: impl Into<Vec<Address>>) -> Self {
        self.exclusion = members.into();
        self
    }

    /// Sets a filter (S000-53).
    #[must_use]
    pub fn with_filter(
        mut self,
        filter: impl Fn(&Address, &Payload) -> FilterDecision + Send + Sync + 'static,
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

/// One member's row of a group call.
#[derive(Clone, PartialEq, Debug)]
pub struct Response {
    /// The member.
    pub member: Address,
    /// Its response, or the reason for its absence.
    pub result: Result<Payload, RpcError>,
}

/// The outcome of a group call: a row per member that was called and not dropped by the filter.
pub type Responses = Vec<Response>;
