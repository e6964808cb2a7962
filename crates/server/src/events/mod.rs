//! Events for clients.

pub(crate) mod directory;
pub(crate) mod push;
