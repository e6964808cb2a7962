use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{Address, Flags, Payload};

use crate::error::RpcError;

/// The awaited responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResponseMode {
    /// All.
    #[default]
    All,
    /// The first accepted.
    First,
    /// None: returns when sent.
    None,
}

/// A filter's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterDecision {
    /// Count it; wait for others.
    Accept,
    /// Drop it; do not wait for that member.
    Ignore,
    /// Count it; complete the call.
    AcceptAndStop,
}

/// A response filter on the member's task: it must not block; its panic is the call's.
pub type ResponseFilter = Arc<dyn Fn(&Address, &Payload) -> FilterDecision + Send + Sync>;

/// A call's options, cheap to clone.
#[derive(Clone)]
pub struct RequestOptions {
    /// The awaited responses.
    pub mode: ResponseMode,
    /// The timeout, 30 s by default; JGroups' is for ever, but then a caller hangs with its peer.
    pub timeout: Duration,
    /// The request's flags; responses have them without RSVP.
    pub flags: Flags,
    /// Whether several members get unicasts.
    pub anycast: bool,
    /// Members that ignore a multicast.
    pub exclusion: Vec<Address>,
    /// Filters a group call's responses.
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
    /// Waits for all responses.
    pub fn all(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// Waits for the first response.
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

    /// Sets members to ignore the call.
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

/// A member's row.
#[derive(Clone, PartialEq, Debug)]
pub struct Response {
    /// The member.
    pub member: Address,
    /// The response, or why there is none.
    pub result: Result<Payload, RpcError>,
}

/// A row per called member that the filter kept.
pub type Responses = Vec<Response>;
