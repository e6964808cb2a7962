use consort_group::Address;
use consort_memory::{ProcessMemory, Shortage};

use crate::Topology;
use crate::config::CacheId;
use crate::cx::Counters;
use crate::node::Node;
use crate::replica::SegmentState;
use crate::replica::write::records::WriteRecord;
use crate::replica::write::records::is_orphan;

/// The progress of a rebalance on one member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Segments still to be received.
    pub segments_left: usize,
    /// The estimated bytes to be received: 0 before the first segment has begun. Segments in transfer count
    /// with their reported sizes, others with the average; values only in a sender's store do not count.
    pub bytes_left: u64,
    /// Bytes received so far.
    pub bytes_pulled: u64,
}

/// The records and pending requests of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// Operations under way, of all caches.
    pub calls: usize,
    /// Commands waiting for a topology.
    pub deferred: usize,
    /// Calls waiting for other owners' records.
    pub parked: usize,
    /// Records whose callers may lack acknowledgements.
    pub records: usize,
    /// Records of callers that are no members.
    pub orphans: usize,
}

/// Pending responses from and to others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResponseLoad {
    /// Operations waiting for room here.
    pub waiting: usize,
    /// Value bytes that others may be sending.
    pub reserved_bytes: u64,
    /// The largest reservation of one member and class.
    pub reserved_bytes_of_one: u64,
    /// Waiting reads' bytes without values.
    pub held_bytes: usize,
}

impl Node {
    /// Sets the process's limited memory, before caches are opened, whose containers count in it. A shortage
    /// refuses writes and is reported to other members.
    pub fn set_memory(&mut self, memory: ProcessMemory) {
        self.cx.memory.set_own(memory);
    }

    /// Returns the address.
    pub fn local(&self) -> &Address {
        &self.cx.local
    }

    /// Returns the installed topology.
    pub fn topology(&self, cache: CacheId) -> Option<&Topology> {
        self.caches.get(&cache)?.shared.topology()
    }

    /// Returns the reported figures.
    pub fn stats(&self) -> NodeStats<'_> {
        NodeStats { node: self }
    }
}

/// The figures from [`Node::stats`].
#[derive(Clone, Copy)]
pub struct NodeStats<'n> {
    node: &'n Node,
}

impl<'n> NodeStats<'n> {
    /// Returns the other members short of memory.
    pub fn short_members(self) -> impl Iterator<Item = (&'n Address, &'n Shortage)> {
        self.node.cx.memory.short_members()
    }

    /// Returns the counters.
    pub fn counters(self) -> Counters {
        self.node.cx.counters
    }

    /// Returns the pending responses.
    pub fn response_load(self) -> ResponseLoad {
        let window = &self.node.cx.calls.window;
        let (reserved_bytes, reserved_bytes_of_one) = window.reserved();
        let held_bytes = self.node.cx.responses.waiting_bytes();
        ResponseLoad { waiting: window.waiting(), reserved_bytes, reserved_bytes_of_one, held_bytes }
    }

    /// Returns the bytes of waiting events of all caches: from changes, at most twice
    /// [`crate::LISTENERS_BYTES_MAX`] and one event. A listener that reads the present entries adds one
    /// batch.
    pub fn waiting_event_bytes(self) -> u64 {
        self.node.cx.waiting_events.bytes()
    }

    /// Returns the unpolled bytes for a member.
    pub fn unsent_bytes(self, member: &Address) -> usize {
        self.node.cx.unsent_bytes(member)
    }

    /// Returns the progress of a rebalance here.
    pub fn progress(self, cache: CacheId) -> Progress {
        self.node.caches.get(&cache).map_or_else(Progress::default, |cache| Progress {
            segments_left: cache.transfer.segments_left(),
            bytes_left: cache.transfer.bytes_left(),
            bytes_pulled: cache.transfer.bytes,
        })
    }

    /// Returns the unfinished operations of all caches.
    pub fn operation_count(self) -> usize {
        self.node.cx.calls.count()
    }

    /// Describes what the member waits for.
    pub fn describe(self) -> String {
        let under_way = self.node.cx.calls.count();
        format!("{under_way} operations under way; coordinator: {}", self.node.coordinator.describe())
    }

    /// Returns the counts of all state that a peer or a caller can increase.
    pub fn load(self, cache: CacheId) -> Load {
        let calls = self.node.cx.calls.count();
        let Some(cache) = self.node.caches.get(&cache) else { return Load { calls, ..Load::default() } };
        let unfinished = |segment: &SegmentState| segment.records.unfinished(&self.node.cx).count();
        let is_gone = |record: &&WriteRecord| {
            cache.shared.topology().is_some_and(|topology| is_orphan(topology, &record.operation))
        };
        let orphans =
            |segment: &SegmentState| segment.records.unfinished(&self.node.cx).filter(is_gone).count();
        Load {
            calls,
            deferred: cache.deferred.len(),
            parked: cache.shared.segments.iter().map(|segment| segment.parked.len()).sum(),
            records: cache.shared.segments.iter().map(unfinished).sum(),
            orphans: cache.shared.segments.iter().map(orphans).sum(),
        }
    }
}
