use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use consort_memory::Budget;

use crate::limits::FULL_CAPACITY_VALUES_MAX;
use crate::memory::Memory;

#[derive(Clone)]
pub(crate) struct StreamBudget {
    pub(crate) bytes: Budget,
    pub(crate) read: Budget,
    pub(crate) reserve_time: Duration,
    pub(crate) rooms: Arc<AtomicUsize>,
}

impl StreamBudget {
    pub(crate) fn within(memory: &Memory) -> Self {
        let (bytes, read) = (memory.streams.clone(), memory.read_streams.clone());
        Self { bytes, read, reserve_time: memory.reserve_time, rooms: Arc::default() }
    }

    pub(crate) fn take_room(&self) -> bool {
        let within = |rooms: usize| (rooms < FULL_CAPACITY_VALUES_MAX).then_some(rooms + 1);
        self.rooms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }
}
