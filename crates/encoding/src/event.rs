//! Events of listeners.

/// The kind of a change of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EventKind {
    /// The key was absent and now has a value.
    Created,
    /// The key has a new value.
    Modified,
    /// The key was removed.
    Removed,
    /// The entry has expired.
    Expired,
    /// No change: the key is present. Part of the initial state.
    Existing,
}
