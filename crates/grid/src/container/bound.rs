//! How much a container may hold, and what happens beyond.

/// How much a container may hold: what one member has of one cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBound {
    /// How much.
    pub limit: Limit,
    /// What a write does that needs more.
    pub when_full: WhenFull,
}

/// What a write does in a full container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// Removes what is least likely to be read, see [`Put::evicted`](super::Put::evicted).
    Remove,
    /// Fails with [`Full`].
    Refuse,
}

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

impl Limit {
    /// Whether there is room for nothing.
    pub fn is_zero(self) -> bool {
        self.amount() == 0
    }

    /// Its number.
    pub(super) fn amount(self) -> u64 {
        match self {
            Self::Entries(amount) | Self::Bytes(amount) => amount,
        }
    }

    /// So much of the same.
    pub(super) fn of(self, amount: u64) -> Self {
        match self {
            Self::Entries(_) => Self::Entries(amount),
            Self::Bytes(_) => Self::Bytes(amount),
        }
    }
}

/// An entry does not fit. Nothing is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the container is full: {limit} are allowed, and the write needs {needed}")]
pub struct Full {
    /// What is allowed.
    pub limit: Limit,
    /// What there would be with the entry if all had gone that may go for it, in the unit of the limit.
    pub needed: u64,
}
