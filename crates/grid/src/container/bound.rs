//! How much a container may hold.

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// So many entries.
    Entries(u64),
    /// So many bytes, as [`Container::bytes`](super::Container::bytes) counts them.
    Bytes(u64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Entries(count) => write!(f, "{count} entries"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

/// An entry does not fit. Nothing is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the container is full: {limit} are allowed, and the write needs {needed}")]
pub struct Full {
    /// What is allowed.
    pub limit: Limit,
    /// What there would be with the entry, in the unit of the limit.
    pub needed: u64,
}
