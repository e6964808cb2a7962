//! A connection: a state machine without IO, its task, and the callers' side.

pub(crate) mod credentials;
pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod legacy;
mod login;
pub(crate) mod pending_requests;
pub(crate) mod security;
pub(crate) mod sinks;
pub(crate) mod state_machine;
pub(crate) mod stream;
