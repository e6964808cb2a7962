/// The size limit of one cache on one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryBound {
    /// The limit.
    pub limit: Limit,
    /// The behaviour of a write that needs more.
    pub when_full: WhenFull,
}

/// The behaviour of a write in a full container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// Evicts the entries least likely to be read, see [`Put::evicted`](super::Put::evicted).
    Remove,
    /// Fails with [`Full`].
    Refuse,
}

/// A limit in one of two units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A number of entries.
    Entries(u64),
    /// Bytes, as [`Container::bytes`](super::Container::bytes) counts them.
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
    /// Whether the limit is zero.
    pub fn is_zero(self) -> bool {
        self.amount() == 0
    }

    pub(super) fn amount(self) -> u64 {
        match self {
            Self::Entries(amount) | Self::Bytes(amount) => amount,
        }
    }

    /// The unit stays.
    pub(super) fn with_amount(self, amount: u64) -> Self {
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
    /// The limit.
    pub limit: Limit,
    /// The size with the entry after all evictions, in the limit's unit.
    pub needed: u64,
}
