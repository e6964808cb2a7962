use crate::limit::{Exceeded, Limit};

/// Bytes of a budget that a holder has reserved, returned on drop.
#[derive(Debug)]
#[must_use = "dropping a reservation returns its bytes at once"]
pub struct Reservation {
    limit: Limit,
    bytes: u64,
}

impl Reservation {
    pub(crate) fn new(limit: Limit, bytes: u64) -> Self {
        Self { limit, bytes }
    }

    /// The reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `more` bytes, or returns the limit that refuses and changes nothing.
    pub fn try_grow(&mut self, more: u64) -> Result<(), Exceeded> {
        self.limit.add(more).map_err(|refusing| refusing.refuse(more))?;
        self.bytes += more;
        Ok(())
    }

    /// Adds `more` bytes that are already in use, without checking limits.
    pub fn grow_forced(&mut self, more: u64) {
        self.limit.add_forced(more);
        self.bytes += more;
    }

    /// Takes over another reservation of the same budget; returns one of another budget unchanged.
    pub fn join(&mut self, mut other: Self) -> Option<Self> {
        if !self.limit.is(&other.limit) {
            return Some(other);
        }
        self.bytes += std::mem::take(&mut other.bytes);
        None
    }

    /// Returns `less` bytes, at most all.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        self.limit.subtract(less);
    }

    /// Moves `bytes`, at most all, to a new reservation.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self::new(self.limit.clone(), bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.limit.subtract(self.bytes);
    }
}
