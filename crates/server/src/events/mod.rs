//! Events for clients: the channel from a listener to its connection, and the directory of all listeners.

pub(crate) mod directory;
pub(crate) mod push;
