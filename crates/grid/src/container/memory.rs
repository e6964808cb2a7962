//! The limit of a process's memory, for the containers in it.

use consort_memory::{ProcessMemory, Shortage};

use super::bound::{Full, Limit};
use super::{Container, table};
use crate::{Lifetime, Segment};

impl Container {
    /// Counts the container's bytes in its process's limited memory.
    #[must_use]
    pub fn within(mut self, memory: ProcessMemory) -> Self {
        memory.count_entries(0, self.bytes());
        self.shards.set_memory(memory);
        self
    }

    /// Marks a cache that the member needs: its writes are admitted until memory is critical.
    #[must_use]
    pub fn essential(mut self) -> Self {
        self.is_essential = true;
        self
    }

    /// The process's memory, if limited.
    pub fn memory(&self) -> Option<&ProcessMemory> {
        self.shards.memory()
    }

    /// Checks whether the process has room for a write. In a container that evicts, the write adds nothing.
    pub(crate) fn admit(
        &self,
        segment: Segment,
        key: &[u8],
        value_len: usize,
        lifetime: Lifetime,
    ) -> Result<(), Shortage> {
        let Some(memory) = self.shards.memory() else { return Ok(()) };
        let cost = table::cost(key.len(), value_len, !lifetime.is_forever(), self.eviction.evicts());
        // If all of it fits, no lookup is needed.
        if memory.has_room(cost) { Ok(()) } else { memory.admit(self.growth(segment, key, cost)) }
    }

    pub(crate) fn growth_of(
        &self,
        segment: Segment,
        key: &[u8],
        value_len: usize,
        lifetime: Lifetime,
    ) -> u64 {
        let cost = table::cost(key.len(), value_len, !lifetime.is_forever(), self.eviction.evicts());
        self.growth(segment, key, cost)
    }

    fn growth(&self, segment: Segment, key: &[u8], cost: u64) -> u64 {
        if self.is_essential || self.eviction.evicts() && self.len() > self.statistics().passive_len() {
            return 0;
        }
        let hash = self.shards.hash_of(key);
        cost.saturating_sub(self.shards.lock(segment).cost_of(hash, key).unwrap_or(0))
    }

    /// Checks whether a value that the store has fits into memory.
    ///
    /// # Errors
    ///
    /// [`Full`] if the process has no room for it.
    pub fn check_room_for_value(&self, key: &[u8], value: &[u8]) -> Result<(), Full> {
        let cost = table::cost(key.len(), value.len(), false, self.eviction.evicts());
        match self.shards.memory() {
            Some(memory) if !self.eviction.evicts() && !memory.has_room(cost) => {
                let Shortage { used, limit, .. } = memory.shortage();
                Err(Full { limit: Limit::Bytes(limit), needed: used + cost })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(memory) = self.shards.memory() {
            memory.count_entries(self.bytes(), 0);
        }
    }
}
